"""Losses with the names and signatures of pytorch-metric-learning where it has them."""

from robustdml_ops.losses.adaptive_proxy_anchor import AdaptiveProxyAnchorLoss
from robustdml_ops.losses.bspml import BSPMLLoss
from robustdml_ops.losses.contrastive import ContrastiveLoss, MemoryContrastiveLoss
from robustdml_ops.losses.multi_similarity import MultiSimilarityLoss
from robustdml_ops.losses.proxy_anchor import ProxyAnchorLoss
from robustdml_ops.losses.smooth_proxy_anchor import SmoothProxyAnchorLoss

__all__ = [
    "AdaptiveProxyAnchorLoss",
    "BSPMLLoss",
    "ContrastiveLoss",
    "MemoryContrastiveLoss",
    "MultiSimilarityLoss",
    "ProxyAnchorLoss",
    "SmoothProxyAnchorLoss",
]
