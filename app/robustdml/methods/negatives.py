"""Settings of sampled negatives, which all methods over classes by their labels share."""

from dataclasses import dataclass
from typing import Any

from robustdml.options import Options, OptionSet, option


@dataclass(frozen=True)
class NegativeOptions(Options, name="negative"):
    """Negatives of a loss over classes."""

    share: float = option(
        1.0, "share of the classes which a batch lacks that a step meets, drawn anew each step", positive=True
    )


@dataclass(frozen=True)
class SoftmaxOptions(Options, name="softmax"):
    """Softmax over a share of the classes."""

    correct_negatives: bool = option(True, "let a class that was drawn count for those that were not")


def sampled(options: OptionSet) -> dict[str, Any]:
    """Give the arguments of a Proxy-Anchor loss for them."""
    share = options[NegativeOptions].share
    return {} if share == 1 else {"negative_share": share}


def sampled_softmax(options: OptionSet) -> dict[str, Any]:
    """Give the arguments of a softmax loss for them."""
    given = sampled(options)
    return given | {"negative_correction": options[SoftmaxOptions].correct_negatives} if given else given
