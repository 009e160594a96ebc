"""Epilogues in Triton (``kernels``), and the fused forward: similarity and log-sum-exp in one launch.

Triton is imported when a kernel is first launched. Under ``TRITON_INTERPRET=1`` the kernels run on CPU tensors, slowly.
"""

from robustdml_ops.engine.triton.anchor_lse import anchor_lse, forward_only
from robustdml_ops.engine.triton.class_lse import class_lse, class_lse_backward, fused_class_lse
from robustdml_ops.engine.triton.device import unavailable
from robustdml_ops.engine.triton.lambert_w import confidence, lambert_w, superloss
from robustdml_ops.engine.triton.otsu import otsu_confidence, otsu_cut
from robustdml_ops.engine.triton.pairs import pair_hinge, pair_lse
from robustdml_ops.engine.triton.rows import finish, normalize_rows, normalize_rows_backward, operand
from robustdml_ops.engine.triton.vmf import evaluate_vmf

__all__ = [
    "anchor_lse",
    "class_lse",
    "class_lse_backward",
    "confidence",
    "evaluate_vmf",
    "finish",
    "forward_only",
    "fused_class_lse",
    "lambert_w",
    "normalize_rows",
    "normalize_rows_backward",
    "operand",
    "otsu_confidence",
    "otsu_cut",
    "pair_hinge",
    "pair_lse",
    "superloss",
    "unavailable",
]
