"""The losses that are measured: their class, here and in pytorch-metric-learning, and their formula."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.python_ref import smooth_proxy_anchor_loss

from . import rivals

LIBRARIES = {"robustdml": "robustdml_ops.losses", "pml": "pytorch_metric_learning.losses"}


def cosine_distance() -> dict[str, Any]:
    return {"distance": import_module("pytorch_metric_learning.distances").CosineSimilarity()}


@dataclass(frozen=True)
class Family:
    """A loss and its rivals."""

    loss: str  # name of the class in both libraries
    formula: Callable[..., Tensor] | None = None  # of embeddings, with ``classes`` a matrix (C·centers, D), and labels
    options: Mapping[str, Any] = field(default_factory=dict)  # of the class, in both libraries
    ours: Mapping[str, Any] = field(default_factory=dict)  # of ours alone
    theirs: Callable[[], Mapping[str, Any]] = dict  # of pytorch-metric-learning's alone
    classes: bool = True  # whether there is a matrix of classes
    of_peer: bool = True  # whether pytorch-metric-learning has the loss
    centers: int = 1  # rows of a class
    scale: float | None = None  # of the cosines, where it is a plain softmax

    def module(self, library: str, device: torch.device, rows: int = 0, D: int = 0, **options: Any) -> nn.Module:
        """The loss of a library, with a matrix of ``rows`` rows if it has one."""
        given = {**self.options, **(self.ours if library == "robustdml" else self.theirs()), **options}
        if self.classes:
            given |= {"num_classes": rows // self.centers, "embedding_size": D}
        with device:
            module: nn.Module = getattr(import_module(LIBRARIES[library]), self.loss)(**given)
        if getattr(module, "first_steps", None) is not None:
            module.first_steps = None  # training has long begun
        return module

    def rival(self, who: str) -> Callable[..., Tensor]:
        """The formula by "torch", as it is, by "compile" or "reduce-overhead", or by "linear_cross_entropy"."""
        if who == "linear_cross_entropy":
            return partial(rivals.linear_cross_entropy, scale=self.scale)
        assert self.formula is not None
        mode = "reduce-overhead" if who == "reduce-overhead" else None
        return self.formula if who == "torch" else rivals.compiled(self.formula, mode=mode)

    def contenders(self, name: str) -> list[str]:
        """Ours, and all others that compute the same, by the family's name."""
        linear = self.scale is not None and hasattr(torch.nn.functional, "linear_cross_entropy")
        whether = {"pml": self.of_peer, "linear_cross_entropy": linear}
        whose = ("robustdml", "pml", "torch", "compile", "linear_cross_entropy")
        return [f"{who}/{name}" for who in whose if whether.get(who, True)]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-4) -> None:
    """Values and gradients agree; that of a matrix (C, D) with that of its transpose, too."""
    for one, other in zip(found, expected, strict=True):
        mine, like = one.detach(), (other if one.shape == other.shape else other.t()).detach()
        atol = tolerance * float(like.abs().max())
        torch.testing.assert_close(mine.to(like.dtype), like, rtol=tolerance, atol=atol)


# With the settings that a class has by default, where no others stand here.
FAMILIES = {
    "proxy-anchor": Family("ProxyAnchorLoss", rivals.proxy_anchor),
    "adaptive": Family("AdaptiveProxyAnchorLoss"),
    "smooth": Family("SmoothProxyAnchorLoss", smooth_proxy_anchor_loss),
    "normalized-softmax": Family("NormalizedSoftmaxLoss", rivals.normalized_softmax, scale=20.0),
    "cosface": Family("CosFaceLoss", rivals.cosface),
    "arcface": Family("ArcFaceLoss", rivals.arcface),
    "subcenter-arcface": Family("SubCenterArcFaceLoss", rivals.subcenter_arcface, centers=3),
    "proxy-nca": Family("ProxyNCALoss", rivals.proxy_nca, scale=2.0),
    "soft-triple": Family("SoftTripleLoss", rivals.soft_triple, centers=10),
    "multi-similarity": Family("MultiSimilarityLoss", rivals.multi_similarity, classes=False),
    "ms": Family("MultiSimilarityLoss", rivals.mined_multi_similarity, ours={"epsilon": 0.1}, classes=False),
    "euclidean-contrastive": Family("ContrastiveLoss", rivals.euclidean_contrastive, classes=False),
    "contrastive": Family(
        "ContrastiveLoss",
        rivals.contrastive,
        options={"pos_margin": 1, "neg_margin": 0.5},
        ours={"distance": "cosine"},
        theirs=cosine_distance,
        classes=False,
    ),
    "supcon": Family("SupConLoss", rivals.supcon, classes=False),
    "nt-xent": Family("NTXentLoss", rivals.nt_xent, classes=False),
    "memory": Family("MemoryContrastiveLoss", rivals.memory_contrastive, classes=False),
    "info-nce": Family("InfoNCELoss", rivals.info_nce, classes=False),
    "sigmoid": Family("SigmoidLoss", rivals.siglip, classes=False, of_peer=False),
}
# A loss of each kind, as most users call it: those of small steps.
PLAIN = ("proxy-anchor", "normalized-softmax", "cosface", "arcface", "proxy-nca", "soft-triple", "multi-similarity")
PLAIN += ("euclidean-contrastive", "supcon", "nt-xent", "info-nce")
