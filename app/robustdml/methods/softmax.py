"""Softmax over classes: Proxy-NCA, normalised softmax, SoftTriple; with a margin, CosFace and ArcFace."""

from dataclasses import dataclass

from torch import Tensor, nn

from robustdml.methods.method import Method
from robustdml.methods.negatives import NegativeOptions, SoftmaxOptions, sampled_softmax
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)


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


def _proxy_nca(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return ProxyNCALoss(num_classes, embedding_size, **options[ProxyNCAOptions].as_dict(), **sampled_softmax(options))


def _normalized_softmax(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return NormalizedSoftmaxLoss(
        num_classes, embedding_size, **options[NormalizedSoftmaxOptions].as_dict(), **sampled_softmax(options)
    )


def _soft_triple(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return SoftTripleLoss(
        num_classes, embedding_size, **options[SoftTripleOptions].as_dict(), **sampled_softmax(options)
    )


def _cosface(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return CosFaceLoss(num_classes, embedding_size, **options[CosFaceOptions].as_dict(), **sampled_softmax(options))


def _arcface(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return ArcFaceLoss(num_classes, embedding_size, **options[ArcFaceOptions].as_dict(), **sampled_softmax(options))


def _subcenter_arcface(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    given = options[ArcFaceOptions].as_dict() | options[SubCenterOptions].as_dict()
    return SubCenterArcFaceLoss(num_classes, embedding_size, **given, **sampled_softmax(options))


def _rows(loss: nn.Module) -> Tensor:
    assert isinstance(loss, ProxyNCALoss)
    return loss.proxies


def _columns(loss: nn.Module) -> Tensor:
    assert isinstance(loss, NormalizedSoftmaxLoss | CosFaceLoss | ArcFaceLoss)
    return loss.W.t()


def _centers(loss: nn.Module) -> Tensor:
    """(C, H, D)."""
    assert isinstance(loss, SoftTripleLoss)
    return loss.fc.t().reshape(loss.num_classes, loss.centers_per_class, loss.embedding_size)


def _sub_centers(loss: nn.Module) -> Tensor:
    """(C, H, D)."""
    assert isinstance(loss, SubCenterArcFaceLoss)
    return loss.W.t().reshape(loss.num_classes, loss.sub_centers, loss.embedding_size)


_NEGATIVES = (NegativeOptions, SoftmaxOptions)

METHODS = {
    "proxy-nca": Method("Proxy-NCA", _proxy_nca, (ProxyNCAOptions, *_NEGATIVES), proxies=_rows),
    "normalized-softmax": Method(
        "Normalised softmax", _normalized_softmax, (NormalizedSoftmaxOptions, *_NEGATIVES), proxies=_columns
    ),
    "soft-triple": Method(
        "SoftTriple", _soft_triple, (SoftTripleOptions, *_NEGATIVES), learning_rate=3e-3, proxies=_centers
    ),
    "cosface": Method("CosFace", _cosface, (CosFaceOptions, *_NEGATIVES), proxies=_columns),
    "arcface": Method("ArcFace", _arcface, (ArcFaceOptions, *_NEGATIVES), proxies=_columns),
    "subcenter-arcface": Method(
        "Sub-center ArcFace", _subcenter_arcface, (ArcFaceOptions, SubCenterOptions, *_NEGATIVES), proxies=_sub_centers
    ),
}
