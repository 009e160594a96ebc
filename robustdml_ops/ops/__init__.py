"""Differentiable operations: the losses are made of these, and so may be others."""

from robustdml_ops.engine.problem import ConfidenceSets, LabelSets
from robustdml_ops.ops.anchor_lse import AnchorBiases, AnchorLSE, anchor_loss, anchor_lse
from robustdml_ops.ops.class_lse import ClassLSE, class_lse
from robustdml_ops.ops.fit_vmf import VonMisesFisher, fit_vmf
from robustdml_ops.ops.lambert_w import confidence, lambertw, superloss
from robustdml_ops.ops.otsu import OtsuCut, otsu_confidence, otsu_threshold
from robustdml_ops.ops.pair_hinge import PairHinge, pair_hinge, pair_hinge_sum
from robustdml_ops.ops.pair_lse import PairLSE, pair_lse, pair_lse_sum
from robustdml_ops.ops.self_paced import self_paced_descent, self_paced_sweep
from robustdml_ops.ops.similarity import similarity
from robustdml_ops.ops.vmf import bessel_ratio, log_bessel_i, vmf_log_likelihood, vmf_log_normalizer, vmf_log_peak

__all__ = [
    "AnchorBiases",
    "AnchorLSE",
    "ClassLSE",
    "ConfidenceSets",
    "LabelSets",
    "OtsuCut",
    "PairHinge",
    "PairLSE",
    "VonMisesFisher",
    "anchor_loss",
    "anchor_lse",
    "bessel_ratio",
    "class_lse",
    "confidence",
    "fit_vmf",
    "lambertw",
    "log_bessel_i",
    "otsu_confidence",
    "otsu_threshold",
    "pair_hinge",
    "pair_hinge_sum",
    "pair_lse",
    "pair_lse_sum",
    "self_paced_descent",
    "self_paced_sweep",
    "similarity",
    "superloss",
    "vmf_log_likelihood",
    "vmf_log_normalizer",
    "vmf_log_peak",
]
