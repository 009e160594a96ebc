"""Losses over pairs: contrastive, with a memory too, multi-similarity, SupCon, SuperLoss, ProcSim, BSPML; and robust.

ProcSim and BSPML weigh samples themselves. The default method is robust.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from robustdml.filters.options import OWN_CLASS, FilterOptions
from robustdml.methods.classes import EmbeddingSoftmaxOptions, ProxyNCAOptions
from robustdml.methods.method import Method, arguments_of
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import (
    BSPMLLoss,
    ContrastiveLoss,
    MemoryContrastiveLoss,
    MultiSimilarityLoss,
    ProcSimLoss,
    SupConLoss,
    SuperContrastiveLoss,
)


@dataclass(frozen=True)
class ContrastiveOptions(Options, name="contrastive"):
    """Contrastive loss."""

    pos_margin: float = option(0.0, "of positive pairs")
    neg_margin: float = option(1.0, "of negative pairs")
    distance: str = option("euclidean", "what the margins are compared with", choices=("cosine", "euclidean"))


@dataclass(frozen=True)
class MemoryContrastiveOptions(Options, name="mcl"):
    """Memory-based contrastive loss (MCL)."""

    margin: float = option(0.5, "similarity from which a negative pair counts, λ")
    variant: str = option(
        "paper", "paper; xbm: code of cross-batch memory; authors: of PRISM", choices=("paper", "xbm", "authors")
    )
    memory_size: int | None = option(
        None, "rows of the memory (default: the training samples, or as many as a filter has)", at_least=1
    )


@dataclass(frozen=True)
class MultiSimilarityOptions(Options, name="multi_similarity"):
    """Multi-similarity loss."""

    alpha: float = option(2.0, "scale of positive pairs")
    beta: float = option(50.0, "scale of negative pairs")
    base: float = option(0.5, "similarity that pairs are measured from, δ")
    epsilon: float = option(0.1, "mining: how far a pair may be from the hardest of the other kind")


@dataclass(frozen=True)
class SupConOptions(Options, name="supcon"):
    """SupCon."""

    temperature: float = option(0.1, "of the softmax over the batch")


@dataclass(frozen=True)
class SuperLossOptions(Options, name="superloss"):
    """SuperLoss on pairs, with the margins of the contrastive loss."""

    lam: float = option(1.0, "λ: the larger, the nearer all weights are to 1")


@dataclass(frozen=True)
class ProcSimOptions(Options, name="procsim"):
    """ProcSim; each row of its paper's ablation is a setting."""

    lam: float = option(0.03, "how far above the threshold a sample still counts")
    dml: str = option("multi-similarity", "the loss that confidences weigh", choices=("multi-similarity", "proxy-nca"))
    threshold: str = option("otsu", "between right and wrong labels", choices=("otsu", "mean", "gmm"))
    detector: str = option("proxy-nca", "whose losses tell them apart", choices=("proxy-nca", "multi-similarity"))
    drop_above: bool = option(False, "leave what is above the threshold out of the pairs of others; an extension")


@dataclass(frozen=True)
class SelfPacedOptions(MultiSimilarityOptions, name="bspml"):
    """BSPML, with the settings of multi-similarity."""

    base: float = option(1.0, "similarity that pairs are measured from, ρ")
    lam: float = option(2.0, "age of the first update, λ")
    growth: float = option(1.1, "what each update multiplies the age by")
    lam_max: float = option(2.0, "largest age, λ∞; the paper tunes it from 1 to 5")
    mu: float | None = option(None, "weight of the balance among classes (default: λ∞); 0 for none")
    warmup: int = option(1, "epochs before the first update, with all weights 1", at_least=0)


def pair_method(title: str, loss: Callable[..., nn.Module], *groups: type[Options], **declared: Any) -> Method:
    """Describe a loss over pairs, whose arguments are settings of these groups."""

    def make_loss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
        return loss(**arguments_of(loss, options, groups))

    # K of the P×K batches is that of PRISM's published settings.
    return replace(Method(title, make_loss, groups, samples_per_class=4, learning_rate=3e-3), **declared)


def _contrastive(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return ContrastiveLoss(**options[ContrastiveOptions].as_dict())


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


METHODS = {
    "contrastive": pair_method("Contrastive", ContrastiveLoss, ContrastiveOptions, make_loss=_contrastive),
    "mcl": pair_method("MCL", MemoryContrastiveLoss, MemoryContrastiveOptions, inputs=("labels", "memory")),
    "multi-similarity": pair_method("Multi-similarity", MultiSimilarityLoss, MultiSimilarityOptions),
    "supcon": pair_method("SupCon", SupConLoss, SupConOptions),
    "superloss": pair_method("SuperLoss", SuperContrastiveLoss, SuperLossOptions, ContrastiveOptions),
    "procsim": pair_method(
        "ProcSim",
        ProcSimLoss,
        *(ProcSimOptions, MultiSimilarityOptions, ProxyNCAOptions),
        make_loss=_procsim,
        observe=_observed_step,
        observed=("sigma", "detector_loss", "above_threshold"),
        takes_filter=False,
    ),
    "bspml": pair_method("BSPML", BSPMLLoss, SelfPacedOptions, inputs=("labels", "self_paced_weights")),
}

# The default: the contrastive loss or Proxy-Anchor from the whitened features on what the audit keeps, and an average
# with the start, or the features themselves. Without trials, and where the audit overlooks much, PRISM filters;
# docs/labels.md.
ROBUST = replace(
    METHODS["contrastive"],
    title="Robust",
    filter=FilterOptions("prism-vmf", threshold="cautious", without_copies=True, vmf_epochs=1, on_trial=True),
    start="whitened",
    averages=True,
    losses=("contrastive", "proxy-anchor"),
)

# Pairs first; halfway `run.stages` compares them with proxies that begin as embeddings, on what the filter keeps.
MANY_CLASSES = replace(
    METHODS["supcon"],
    title="Many classes",
    options=(SupConOptions, EmbeddingSoftmaxOptions),
    filter=FilterOptions(OWN_CLASS),
    start="principal",
    losses=("supcon", "softmax-from-embeddings"),
    has_stages=True,
)
