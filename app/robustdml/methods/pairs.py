"""Pairs of samples: contrastive, with a memory too, multi-similarity, SuperLoss; and the default, robust."""

from dataclasses import dataclass, replace
from functools import partial

from torch import nn

from robustdml.filters.options import FilterOptions
from robustdml.methods.method import Method
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import ContrastiveLoss, MemoryContrastiveLoss, MultiSimilarityLoss, SuperContrastiveLoss

# Of a loss over pairs; K of the P×K batches is that of PRISM's published settings.
pair_method = partial(Method, samples_per_class=4, learning_rate=3e-3)


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
        None, "rows of the memory (default: the training samples; with a filter, that of the filter)"
    )


@dataclass(frozen=True)
class MultiSimilarityOptions(Options, name="multi_similarity"):
    """Multi-similarity loss."""

    alpha: float = option(2.0, "scale of positive pairs")
    beta: float = option(50.0, "scale of negative pairs")
    base: float = option(0.5, "similarity that pairs are measured from, δ")
    epsilon: float = option(0.1, "mining: how far a pair may be from the hardest of the other kind")


@dataclass(frozen=True)
class SuperLossOptions(Options, name="superloss"):
    """SuperLoss on pairs, with the margins of the contrastive loss."""

    lam: float = option(1.0, "λ: the larger, the nearer all weights are to 1")


def _memory_contrastive(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    mcl = options[MemoryContrastiveOptions]
    return MemoryContrastiveLoss(mcl.margin, variant=mcl.variant)


def _superloss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    margins = options[ContrastiveOptions]
    return SuperContrastiveLoss(margins.pos_margin, margins.neg_margin, options[SuperLossOptions].lam)


METHODS = {
    "contrastive": pair_method(
        "Contrastive",
        lambda options, *_: ContrastiveLoss(**options[ContrastiveOptions].as_dict()),
        (ContrastiveOptions,),
    ),
    "mcl": pair_method("MCL", _memory_contrastive, (MemoryContrastiveOptions,), inputs=("labels", "memory")),
    "multi-similarity": pair_method(
        "Multi-similarity",
        lambda options, *_: MultiSimilarityLoss(**options[MultiSimilarityOptions].as_dict()),
        (MultiSimilarityOptions,),
    ),
    "superloss": pair_method("SuperLoss", _superloss, (SuperLossOptions, ContrastiveOptions), takes_weights=False),
}

# The default: the contrastive loss from the whitened features on what the audit keeps, and an average with the
# start, or the features themselves. Without trials, and where the audit overlooks much, PRISM filters; docs/labels.md.
ROBUST = replace(
    METHODS["contrastive"],
    title="Robust",
    filter=FilterOptions("prism-vmf", threshold="cautious", without_copies=True, vmf_epochs=1, on_trial=True),
    start="whitened",
    averages=True,
)
