"""Proxy-Anchor and its descendants."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from robustdml.errors import UsageError
from robustdml.methods.method import Method
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss


@dataclass(frozen=True)
class NegativeOptions(Options, name="negative"):
    """Negatives of a loss over classes."""

    share: float = option(
        1.0, "share of the classes outside the batch that a step computes with, drawn anew each step", positive=True
    )
    drop_similar: float | None = option(
        None, "cosine with a sample above which a class is no negative of it, such as 0.4 (default: all are)"
    )
    drop_nearer: bool = option(False, "a class nearer to a sample than its own and than by chance is no negative")


@dataclass(frozen=True)
class AnchorOptions(Options, name="anchor"):
    """Proxy-Anchor, smooth and adaptive Proxy-Anchor."""

    alpha: float = option(32.0, "scale of the similarities")
    margin: float = option(0.1, "margin, or where a learnt one starts")


@dataclass(frozen=True)
class AdaptiveOptions(Options, name="adaptive"):
    """Adaptive Proxy-Anchor."""

    per_class: bool = option(False, "a margin for each class")
    regularization: float = option(1.0, "weight of the term that keeps margins up, λ")
    negative_margin: str = option("sample", "whose margin a negative pair has", choices=("sample", "proxy"))


@dataclass(frozen=True)
class SmoothOptions(Options, name="smooth"):
    """Smooth Proxy-Anchor."""

    beta: float = option(100.0, "steepness of the weights")
    threshold: float = option(0.1, "confidence from which a sample counts as positive")
    epochs: int = option(12, "epochs of phase one, which trains the confidence head", at_least=1)
    learning_rate: float = option(1e-3, "learning rate of phase one", positive=True)


def class_method(title: str, loss: Callable[..., nn.Module], *groups: type[Options], **declared: Any) -> Method:
    """Describe a loss over classes, whose arguments are the settings of these groups."""

    def make_loss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
        arguments = {name: value for group in groups for name, value in options[group].as_dict().items()}
        share, correction = arguments.pop("share", 1), arguments.pop("correct_negatives", None)
        limit, nearer = arguments.pop("drop_similar", None), arguments.pop("drop_nearer", False)
        if nearer and limit is not None:
            raise UsageError(f"negative.drop_similar={limit} beside negative.drop_nearer: leave one out")
        arguments["drop_similar_negatives"] = "own" if nearer else limit
        if share != 1:  # Otherwise a step meets all classes
            arguments["negative_share"] = share
            if correction is not None:
                arguments["negative_correction"] = correction
        return loss(num_classes, embedding_size, **arguments)

    return Method(title, make_loss, groups, **{"proxies": lambda loss: loss.proxies, **declared})


def _smooth(num_classes: int, embedding_size: int, epochs: int, learning_rate: float, **arguments: Any) -> nn.Module:
    """Make the loss without the settings of phase one."""
    return SmoothProxyAnchorLoss(num_classes, embedding_size, **arguments)


METHODS = {
    "proxy-anchor": class_method("Proxy-Anchor", ProxyAnchorLoss, AnchorOptions, NegativeOptions),
    "smooth-proxy-anchor": class_method(
        "Smooth Proxy-Anchor", _smooth, AnchorOptions, SmoothOptions, inputs=("confidences",)
    ),
    "adaptive-proxy-anchor": class_method(
        "Adaptive Proxy-Anchor", AdaptiveProxyAnchorLoss, AnchorOptions, AdaptiveOptions, NegativeOptions
    ),
}
