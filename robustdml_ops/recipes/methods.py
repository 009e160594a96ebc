"""The training methods by name: how each makes its loss, and what the loss is fed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss

if TYPE_CHECKING:
    from robustdml_ops.recipes.config import TrainingConfig


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes
    ----------
    title : str
        Its name in tables and plots.
    make_loss : callable
        Makes the loss of settings and number of classes.
    needs_confidences : bool
        The loss takes the confidences of a `ConfidenceHead`, trained beforehand, in place of labels.
    """

    title: str
    make_loss: Callable[["TrainingConfig", int], nn.Module]
    needs_confidences: bool = False


def _proxy_anchor(config: "TrainingConfig", num_classes: int) -> nn.Module:
    return ProxyAnchorLoss(num_classes, config.embedding_size, margin=config.margin, alpha=config.alpha)


def _smooth_proxy_anchor(config: "TrainingConfig", num_classes: int) -> nn.Module:
    return SmoothProxyAnchorLoss(
        num_classes,
        config.embedding_size,
        margin=config.margin,
        alpha=config.alpha,
        beta=config.beta,
        threshold=config.threshold,
    )


def _adaptive_proxy_anchor(config: "TrainingConfig", num_classes: int) -> nn.Module:
    return AdaptiveProxyAnchorLoss(num_classes, config.embedding_size, margin=config.margin, alpha=config.alpha)


METHODS = {
    "proxy-anchor": Method("Proxy-Anchor", _proxy_anchor),
    "smooth-proxy-anchor": Method("Smooth Proxy-Anchor", _smooth_proxy_anchor, needs_confidences=True),
    "adaptive-proxy-anchor": Method("Adaptive Proxy-Anchor", _adaptive_proxy_anchor),
}
