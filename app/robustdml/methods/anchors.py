"""Proxy-Anchor and its descendants."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from robustdml.methods.method import Method
from robustdml.options import Options, OptionSet, option
from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss


@dataclass(frozen=True)
class NegativeOptions(Options, name="negative"):
    """Negatives of a loss over classes."""

    share: float = option(
        1.0, "share of the classes which a batch lacks that a step meets, drawn anew each step", positive=True
    )


@dataclass(frozen=True)
class AnchorOptions(Options, name="anchor"):
    """Proxy-Anchor, smooth and adaptive Proxy-Anchor."""

    alpha: float = option(32.0, "scale of the similarities")
    margin: float = option(0.1, "margin, or where a learnt one starts")


@dataclass(frozen=True)
class AdaptiveOptions(Options, name="adaptive"):
    """Adaptive Proxy-Anchor."""

    per_class: bool = option(False, "a margin for each class")
    regularization: float = option(1.0, "weight of the term that keeps margins up, λ")
    negative_margin: str = option("sample", "whose margin a negative pair has", choices=("sample", "proxy"))


@dataclass(frozen=True)
class SmoothOptions(Options, name="smooth"):
    """Smooth Proxy-Anchor."""

    beta: float = option(100.0, "steepness of the weights")
    threshold: float = option(0.1, "confidence from which a sample counts as positive")
    epochs: int = option(12, "epochs of phase one, which trains the confidence head", at_least=1)
    learning_rate: float = option(1e-3, "learning rate of phase one", positive=True)


def sampled_negatives(options: OptionSet) -> dict[str, Any]:
    """Arguments of a loss over classes for sampled negatives; none where all are taken."""
    share = options[NegativeOptions].share
    return {} if share == 1 else {"negative_share": share}


def _proxy_anchor(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return ProxyAnchorLoss(
        num_classes, embedding_size, **options[AnchorOptions].as_dict(), **sampled_negatives(options)
    )


def _smooth_proxy_anchor(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    anchor, smooth = options[AnchorOptions].as_dict(), options[SmoothOptions]
    return SmoothProxyAnchorLoss(num_classes, embedding_size, **anchor, beta=smooth.beta, threshold=smooth.threshold)


def _adaptive_proxy_anchor(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    arguments = options[AnchorOptions].as_dict() | options[AdaptiveOptions].as_dict() | sampled_negatives(options)
    return AdaptiveProxyAnchorLoss(num_classes, embedding_size, **arguments)


def _proxies(loss: nn.Module) -> Tensor:
    assert isinstance(loss, ProxyAnchorLoss | SmoothProxyAnchorLoss | AdaptiveProxyAnchorLoss)
    return loss.proxies


METHODS = {
    "proxy-anchor": Method("Proxy-Anchor", _proxy_anchor, (AnchorOptions, NegativeOptions), proxies=_proxies),
    "smooth-proxy-anchor": Method(
        "Smooth Proxy-Anchor",
        _smooth_proxy_anchor,
        (AnchorOptions, SmoothOptions),
        inputs=lambda options: ("confidences",),
        proxies=_proxies,
    ),
    "adaptive-proxy-anchor": Method(
        "Adaptive Proxy-Anchor",
        _adaptive_proxy_anchor,
        (AnchorOptions, AdaptiveOptions, NegativeOptions),
        proxies=_proxies,
    ),
}
