"""Proxy-Anchor and its descendants."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss
from robustdml_ops.losses.adaptive_proxy_anchor import NEGATIVE_MARGINS
from robustdml_ops.losses.base import AnchorFamilyLoss
from robustdml_ops.recipes.methods.method import Method
from robustdml_ops.recipes.options import option

if TYPE_CHECKING:
    from robustdml_ops.recipes.config import TrainingConfig


@dataclass(frozen=True)
class AnchorOptions:
    """Proxy-Anchor, smooth and adaptive Proxy-Anchor."""

    alpha: float = option(32.0, "scale of the similarities")
    margin: float = option(0.1, "margin, or where a learnt one starts")


@dataclass(frozen=True)
class AdaptiveOptions:
    """Adaptive Proxy-Anchor."""

    per_class: bool = option(False, "a margin for each class")
    regularization: float = option(1.0, "weight of the term that keeps margins up, λ")
    negative_margin: str = option("sample", "whose margin a negative pair has", choices=NEGATIVE_MARGINS)


@dataclass(frozen=True)
class SmoothOptions:
    """Smooth Proxy-Anchor."""

    beta: float = option(100.0, "steepness of the weights")
    threshold: float = option(0.1, "confidence from which a sample counts as positive")
    epochs: int = option(12, "epochs of phase one, which trains the confidence module")
    learning_rate: float = option(1e-3, "learning rate of phase one")


def _proxy_anchor(config: "TrainingConfig", num_classes: int) -> nn.Module:
    anchor = config.anchor
    return ProxyAnchorLoss(num_classes, config.embedding_size, margin=anchor.margin, alpha=anchor.alpha)


def _smooth_proxy_anchor(config: "TrainingConfig", num_classes: int) -> nn.Module:
    return SmoothProxyAnchorLoss(
        num_classes,
        config.embedding_size,
        margin=config.anchor.margin,
        alpha=config.anchor.alpha,
        beta=config.smooth.beta,
        threshold=config.smooth.threshold,
    )


def _adaptive_proxy_anchor(config: "TrainingConfig", num_classes: int) -> nn.Module:
    anchor = config.anchor
    return AdaptiveProxyAnchorLoss(
        num_classes, config.embedding_size, margin=anchor.margin, alpha=anchor.alpha, **asdict(config.adaptive)
    )


def _proxies(loss: nn.Module) -> Tensor:
    assert isinstance(loss, AnchorFamilyLoss)
    return loss.proxies


ANCHOR_METHODS = {
    "proxy-anchor": Method("Proxy-Anchor", _proxy_anchor, proxies=_proxies),
    "smooth-proxy-anchor": Method(
        "Smooth Proxy-Anchor", _smooth_proxy_anchor, inputs=lambda config: ("confidences",), proxies=_proxies
    ),
    "adaptive-proxy-anchor": Method("Adaptive Proxy-Anchor", _adaptive_proxy_anchor, proxies=_proxies),
}
