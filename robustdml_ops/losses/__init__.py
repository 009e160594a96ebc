"""Losses with the names and signatures of pytorch-metric-learning where it has them."""

import difflib
from typing import NoReturn

import robustdml_ops.losses.self_check_cases  # noqa: F401, which registers them
from robustdml_ops.losses.adaface import AdaFaceLoss
from robustdml_ops.losses.adaptive_proxy_anchor import AdaptiveProxyAnchorLoss
from robustdml_ops.losses.arcface import ArcFaceLoss
from robustdml_ops.losses.bspml import BSPMLLoss
from robustdml_ops.losses.contrastive import ContrastiveLoss
from robustdml_ops.losses.cosface import CosFaceLoss
from robustdml_ops.losses.info_nce import InfoNCELoss
from robustdml_ops.losses.language_guidance import LanguageGuidanceLoss
from robustdml_ops.losses.loading import load_class_matrix
from robustdml_ops.losses.memory_contrastive import MemoryContrastiveLoss
from robustdml_ops.losses.multi_similarity import MultiSimilarityLoss
from robustdml_ops.losses.normalized_softmax import NormalizedSoftmaxLoss
from robustdml_ops.losses.ntxent import NTXentLoss
from robustdml_ops.losses.observation import Observation
from robustdml_ops.losses.procsim import ProcSimLoss, ProcSimStep
from robustdml_ops.losses.proxy_anchor import ProxyAnchorLoss
from robustdml_ops.losses.proxy_nca import ProxyNCALoss
from robustdml_ops.losses.sigmoid import SigmoidLoss
from robustdml_ops.losses.smooth_proxy_anchor import SmoothProxyAnchorLoss
from robustdml_ops.losses.soft_triple import SoftTripleLoss
from robustdml_ops.losses.starting import start_class_matrix
from robustdml_ops.losses.subcenter_arcface import SubCenterArcFaceLoss
from robustdml_ops.losses.supcon import SupConLoss
from robustdml_ops.losses.super_contrastive import SuperContrastiveLoss
from robustdml_ops.losses.superloss import SuperLoss

__all__ = [
    "AdaFaceLoss",
    "AdaptiveProxyAnchorLoss",
    "ArcFaceLoss",
    "BSPMLLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "InfoNCELoss",
    "LanguageGuidanceLoss",
    "MemoryContrastiveLoss",
    "MultiSimilarityLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "Observation",
    "ProcSimLoss",
    "ProcSimStep",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SigmoidLoss",
    "SmoothProxyAnchorLoss",
    "SoftTripleLoss",
    "SubCenterArcFaceLoss",
    "SupConLoss",
    "SuperContrastiveLoss",
    "SuperLoss",
    "load_class_matrix",
    "start_class_matrix",
]


def __getattr__(name: str) -> NoReturn:
    from robustdml_ops.losses.peer.package import PACKAGE, peer_losses

    if hasattr(peer_losses, name):
        hint = f"it stays in {PACKAGE}, whose losses work beside these"
    else:
        near = difflib.get_close_matches(name, __all__, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(__all__)}"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {hint}")
