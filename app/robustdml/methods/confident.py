"""Losses that weigh samples or pairs by a confidence found in the loss itself: ProcSim and SuperLoss."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from robustdml.methods.method import Method
from robustdml.methods.pairs import SAMPLES_PER_CLASS, ContrastiveOptions, MultiSimilarityOptions
from robustdml.methods.softmax import ProxyNCAOptions
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import LanguageGuidanceLoss, MultiSimilarityLoss, ProcSimLoss, SuperContrastiveLoss


@dataclass(frozen=True)
class ProcSimOptions(Options, name="procsim"):
    """ProcSim; each row of its paper's ablation is a setting."""

    lam: float = option(0.03, "how far above the threshold a sample still counts")
    omega: float = option(0.0, "weight of language guidance by the names of similar characters; Glyphs only")
    dml: str = option("multi-similarity", "the loss that confidences weigh", choices=("multi-similarity", "proxy-nca"))
    threshold: str = option("otsu", "between right and wrong labels", choices=("otsu", "mean", "gmm"))
    detector: str = option("proxy-nca", "whose losses tell them apart", choices=("proxy-nca", "multi-similarity"))
    confidence_on_regularizer: bool = option(False, "let confidences weigh language guidance, too")
    drop_above: bool = option(
        False, "leave what lies above the threshold out of the pairs of others, too; an extension"
    )


@dataclass(frozen=True)
class SuperLossOptions(Options, name="superloss"):
    """SuperLoss on pairs, with the margins of the contrastive loss."""

    lam: float = option(1.0, "how much losses above and below their mean count less and more")


def _procsim(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    settings = options[ProcSimOptions].as_dict()
    if settings["dml"] == "multi-similarity":
        settings["dml"] = MultiSimilarityLoss(**options[MultiSimilarityOptions].as_dict(), reduction="none")
    if settings["omega"] > 0:
        settings["regularizer"] = LanguageGuidanceLoss(reduction="none")
    return ProcSimLoss(num_classes, embedding_size, **settings, softmax_scale=options[ProxyNCAOptions].softmax_scale)


def _observed_step(loss: nn.Module, embeddings: Tensor, arguments: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    assert isinstance(loss, ProcSimLoss)
    step = loss.step(embeddings, **arguments)
    above = step.losses > step.threshold
    return step.loss, {"sigma": step.confidence, "detector_loss": step.losses, "above_threshold": above}


def _superloss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    margins = options[ContrastiveOptions]
    return SuperContrastiveLoss(margins.pos_margin, margins.neg_margin, options[SuperLossOptions].lam)


METHODS = {
    "procsim": Method(
        "ProcSim",
        _procsim,
        (ProcSimOptions, MultiSimilarityOptions, ProxyNCAOptions),
        inputs=lambda options: ("labels", "guidance") if options[ProcSimOptions].omega > 0 else ("labels",),
        samples_per_class=SAMPLES_PER_CLASS,
        learning_rate=3e-3,
        observe=_observed_step,
        observed=("sigma", "detector_loss", "above_threshold"),
        takes_weights=False,
    ),
    "superloss": Method(
        "SuperLoss",
        _superloss,
        (SuperLossOptions, ContrastiveOptions),
        samples_per_class=SAMPLES_PER_CLASS,
        learning_rate=3e-3,
        takes_weights=False,
    ),
}
