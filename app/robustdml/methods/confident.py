"""Losses that weigh samples themselves: ProcSim and BSPML."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from robustdml.methods.pairs import MultiSimilarityOptions, pair_method
from robustdml.methods.softmax import ProxyNCAOptions
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import BSPMLLoss, MultiSimilarityLoss, ProcSimLoss


@dataclass(frozen=True)
class ProcSimOptions(Options, name="procsim"):
    """ProcSim; each row of its paper's ablation is a setting."""

    lam: float = option(0.03, "how far above the threshold a sample still counts")
    dml: str = option("multi-similarity", "the loss that confidences weigh", choices=("multi-similarity", "proxy-nca"))
    threshold: str = option("otsu", "between right and wrong labels", choices=("otsu", "mean", "gmm"))
    detector: str = option("proxy-nca", "whose losses tell them apart", choices=("proxy-nca", "multi-similarity"))
    drop_above: bool = option(
        False, "leave what lies above the threshold out of the pairs of others, too; an extension"
    )


@dataclass(frozen=True)
class SelfPacedOptions(MultiSimilarityOptions, name="bspml"):
    """BSPML, with the settings of multi-similarity."""

    base: float = option(1.0, "similarity that pairs are measured from, ρ")
    lam: float = option(2.0, "age of the first update, λ")
    growth: float = option(1.1, "what each update multiplies the age by")
    lam_max: float = option(2.0, "largest age, λ∞; the paper tunes it from 1 to 5")
    mu: float | None = option(None, "weight of the balance among classes (default: λ∞); 0 for none")
    warmup: int = option(1, "epochs before the first update, with all weights 1")


def _procsim(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    settings = options[ProcSimOptions].as_dict()
    if settings["dml"] == "multi-similarity":
        settings["dml"] = MultiSimilarityLoss(**options[MultiSimilarityOptions].as_dict(), reduction="none")
    return ProcSimLoss(num_classes, embedding_size, **settings, softmax_scale=options[ProxyNCAOptions].softmax_scale)


def _observed_step(loss: nn.Module, embeddings: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    assert isinstance(loss, ProcSimLoss)
    step = loss.step(embeddings, **arguments)
    above = step.losses > step.threshold
    return step.loss, {"sigma": step.confidence, "detector_loss": step.losses, "above_threshold": above}


def _bspml(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    bspml = options[SelfPacedOptions]
    return BSPMLLoss(bspml.alpha, bspml.beta, bspml.base, bspml.epsilon)


METHODS = {
    "procsim": pair_method(
        "ProcSim",
        _procsim,
        (ProcSimOptions, MultiSimilarityOptions, ProxyNCAOptions),
        observe=_observed_step,
        observed=("sigma", "detector_loss", "above_threshold"),
        takes_weights=False,
    ),
    "bspml": pair_method("BSPML", _bspml, (SelfPacedOptions,), inputs=("labels", "self_paced_weights")),
}
