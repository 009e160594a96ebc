"""Epilogues of the native module.

On the CPU (``csrc/cpu``): vector code for the widest registers of the machine, all cores, no GIL. On a GPU
(``csrc/cuda``): kernels in the current stream that nothing waits for.
"""

from robustdml_ops.engine.native.anchor_lse import anchor_lse, forward_only
from robustdml_ops.engine.native.class_lse import class_lse, class_lse_backward, fused_class_lse
from robustdml_ops.engine.native.lambert_w import confidence, lambert_w, superloss
from robustdml_ops.engine.native.module import unavailable
from robustdml_ops.engine.native.otsu import otsu_confidence, otsu_cut
from robustdml_ops.engine.native.pairs import pair_hinge, pair_lse
from robustdml_ops.engine.native.rows import finish, normalize_rows, normalize_rows_backward, operand
from robustdml_ops.engine.native.self_paced import self_paced_sweep
from robustdml_ops.engine.native.vmf import evaluate_vmf

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
    "self_paced_sweep",
    "superloss",
    "unavailable",
]
