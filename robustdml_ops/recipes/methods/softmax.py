"""Softmax over classes: Proxy-NCA, normalised softmax, SoftTriple."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyNCALoss, SoftTripleLoss
from robustdml_ops.recipes.methods.method import Method
from robustdml_ops.recipes.options import option

if TYPE_CHECKING:
    from robustdml_ops.recipes.config import TrainingConfig


@dataclass(frozen=True)
class ProxyNCAOptions:
    """Proxy-NCA."""

    softmax_scale: float = option(3.0, "inverse temperature; the paper has 1, ProxyNCA++ 9")


@dataclass(frozen=True)
class NormalizedSoftmaxOptions:
    """Normalised softmax."""

    temperature: float = option(0.05, "of the softmax")


@dataclass(frozen=True)
class SoftTripleOptions:
    """SoftTriple."""

    centers_per_class: int = option(10, "centres of each class, H")
    la: float = option(20.0, "scale of the similarities, λ")
    gamma: float = option(0.1, "temperature of the softmax over a class's centres")
    margin: float = option(0.01, "δ")
    regularizer_weight: float = option(0.0, "draws centres of a class into one; the authors take 0.2")


def _proxy_nca(config: "TrainingConfig", num_classes: int) -> nn.Module:
    return ProxyNCALoss(num_classes, config.embedding_size, **asdict(config.proxy_nca))


def _normalized_softmax(config: "TrainingConfig", num_classes: int) -> nn.Module:
    return NormalizedSoftmaxLoss(num_classes, config.embedding_size, **asdict(config.normalized_softmax))


def _soft_triple(config: "TrainingConfig", num_classes: int) -> nn.Module:
    return SoftTripleLoss(num_classes, config.embedding_size, **asdict(config.soft_triple))


def _rows(loss: nn.Module) -> Tensor:
    assert isinstance(loss, ProxyNCALoss)
    return loss.proxies


def _columns(loss: nn.Module) -> Tensor:
    assert isinstance(loss, NormalizedSoftmaxLoss)
    return loss.W.t()


def _centers(loss: nn.Module) -> Tensor:
    """(C, H, D)."""
    assert isinstance(loss, SoftTripleLoss)
    return loss.fc.t().reshape(loss.num_classes, loss.centers_per_class, loss.embedding_size)


SOFTMAX_METHODS = {
    "proxy-nca": Method("Proxy-NCA", _proxy_nca, proxies=_rows),
    "normalized-softmax": Method("Normalised softmax", _normalized_softmax, proxies=_columns),
    "soft-triple": Method("SoftTriple", _soft_triple, learning_rate=3e-3, proxies=_centers),
}
