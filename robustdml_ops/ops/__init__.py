"""Differentiable operations, of which the losses are made."""

import robustdml_ops.ops.self_check_cases  # noqa: F401, which registers them
from robustdml_ops.engine.labels import ABSENT, ELSEWHERE, LabelSets
from robustdml_ops.engine.similarity_chunks import limit_saved_bytes
from robustdml_ops.engine.validation import NotFiniteError
from robustdml_ops.ops.anchor import AnchorBiases, AnchorLSE, anchor_loss, anchor_lse
from robustdml_ops.ops.anchor.backends import ConfidenceSets
from robustdml_ops.ops.classes import ClassLSE, class_lse
from robustdml_ops.ops.lambert_w import confidence, lambertw, superloss
from robustdml_ops.ops.otsu import otsu_confidence, otsu_threshold
from robustdml_ops.ops.otsu.backends import OtsuCut
from robustdml_ops.ops.pairs import DISTANCES, PairHinge, PairLSE, pair_hinge, pair_hinge_sum, pair_lse, pair_lse_sum
from robustdml_ops.ops.self_paced import self_paced_descent, self_paced_sweep
from robustdml_ops.ops.similarity import Nearest, nearest, similarity
from robustdml_ops.ops.vmf import bessel_ratio, log_bessel_i, vmf_log_likelihood, vmf_log_normalizer, vmf_log_peak
from robustdml_ops.ops.vmf.fit import VonMisesFisher, fit_vmf

__all__ = [
    "ABSENT",
    "DISTANCES",
    "ELSEWHERE",
    "AnchorBiases",
    "AnchorLSE",
    "ClassLSE",
    "ConfidenceSets",
    "LabelSets",
    "Nearest",
    "NotFiniteError",
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
    "limit_saved_bytes",
    "log_bessel_i",
    "nearest",
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
