"""Softmax over classes: Proxy-NCA, normalised softmax, SoftTriple; with a margin, CosFace and ArcFace."""

from dataclasses import dataclass
from typing import Any

from robustdml.methods.anchors import NegativeOptions, class_method
from robustdml.options import Options, option
from robustdml_ops.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)


@dataclass(frozen=True)
class SoftmaxOptions(Options, name="softmax"):
    """Softmax over a share of the classes."""

    correct_negatives: bool = option(True, "let a class that was drawn count for those that were not")


@dataclass(frozen=True)
class ProxyNCAOptions(Options, name="proxy_nca"):
    """Proxy-NCA."""

    softmax_scale: float = option(3.0, "inverse temperature; the paper has 1, ProxyNCA++ 9")


@dataclass(frozen=True)
class NormalizedSoftmaxOptions(Options, name="normalized_softmax"):
    """Normalised softmax."""

    temperature: float = option(0.05, "of the softmax")


@dataclass(frozen=True)
class SoftTripleOptions(Options, name="soft_triple"):
    """SoftTriple."""

    centers_per_class: int = option(10, "centres of each class, H")
    la: float = option(20.0, "scale of the similarities, λ")
    gamma: float = option(0.1, "temperature of the softmax over a class's centres")
    margin: float = option(0.01, "δ")
    regularizer_weight: float = option(0.0, "draws centres of a class into one; the authors take 0.2")


@dataclass(frozen=True)
class CosFaceOptions(Options, name="cosface"):
    """CosFace."""

    margin: float = option(0.35, "of the label's cosine")
    scale: float = option(8.0, "of the cosines, an inverse temperature; the papers have 64")


@dataclass(frozen=True)
class ArcFaceOptions(Options, name="arcface"):
    """ArcFace, also with sub-centres."""

    margin: float = option(28.6, "of the angle with the label's class, in degrees")
    scale: float = option(8.0, "of the cosines, an inverse temperature; the papers have 64")


@dataclass(frozen=True)
class SubCenterOptions(Options, name="subcenter"):
    """Sub-center ArcFace."""

    sub_centers: int = option(3, "centres of each class")


def _columns(loss: Any) -> Any:
    return loss.W.t()


def _centers(loss: Any) -> Any:
    """(C, H, D)."""
    weights = loss.fc if isinstance(loss, SoftTripleLoss) else loss.W
    return weights.t().reshape(loss.num_classes, -1, loss.embedding_size)


_NEGATIVES = (NegativeOptions, SoftmaxOptions)
METHODS = {
    "proxy-nca": class_method("Proxy-NCA", ProxyNCALoss, ProxyNCAOptions, *_NEGATIVES),
    "normalized-softmax": class_method(
        "Normalised softmax", NormalizedSoftmaxLoss, NormalizedSoftmaxOptions, *_NEGATIVES, proxies=_columns
    ),
    "soft-triple": class_method(
        "SoftTriple", SoftTripleLoss, SoftTripleOptions, *_NEGATIVES, proxies=_centers, learning_rate=3e-3
    ),
    "cosface": class_method("CosFace", CosFaceLoss, CosFaceOptions, *_NEGATIVES, proxies=_columns),
    "arcface": class_method("ArcFace", ArcFaceLoss, ArcFaceOptions, *_NEGATIVES, proxies=_columns),
    "subcenter-arcface": class_method(
        "Sub-center ArcFace", SubCenterArcFaceLoss, ArcFaceOptions, SubCenterOptions, *_NEGATIVES, proxies=_centers
    ),
}
