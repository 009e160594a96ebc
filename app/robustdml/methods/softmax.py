"""Softmax over classes: Proxy-NCA, normalised softmax, SoftTriple; with a margin, CosFace and ArcFace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from robustdml.methods.anchors import NegativeOptions, sampled_negatives
from robustdml.methods.method import Method
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


def _method(
    title: str,
    loss: Callable[..., nn.Module],
    proxies: Callable[[nn.Module], Tensor],
    *groups: type[Options],
    learning_rate: float = 1e-3,
) -> Method:
    """Describe a loss whose arguments are the settings of these groups and of sampled negatives."""

    def make_loss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
        arguments: dict[str, Any] = sampled_negatives(options)
        if arguments:
            arguments["negative_correction"] = options[SoftmaxOptions].correct_negatives
        for group in groups:
            arguments |= options[group].as_dict()
        return loss(num_classes, embedding_size, **arguments)

    groups_of_all = (*groups, NegativeOptions, SoftmaxOptions)
    return Method(title, make_loss, groups_of_all, proxies=proxies, learning_rate=learning_rate)


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


METHODS = {
    "proxy-nca": _method("Proxy-NCA", ProxyNCALoss, _rows, ProxyNCAOptions),
    "normalized-softmax": _method("Normalised softmax", NormalizedSoftmaxLoss, _columns, NormalizedSoftmaxOptions),
    "soft-triple": _method("SoftTriple", SoftTripleLoss, _centers, SoftTripleOptions, learning_rate=3e-3),
    "cosface": _method("CosFace", CosFaceLoss, _columns, CosFaceOptions),
    "arcface": _method("ArcFace", ArcFaceLoss, _columns, ArcFaceOptions),
    "subcenter-arcface": _method(
        "Sub-center ArcFace", SubCenterArcFaceLoss, _sub_centers, ArcFaceOptions, SubCenterOptions
    ),
}
