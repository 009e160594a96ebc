"""Epilogues in Triton (``kernels``), and the fused forward: similarity and log-sum-exp in one launch.

Triton is imported when a kernel is first launched. Under ``TRITON_INTERPRET=1`` the kernels run on CPU tensors, slowly.
"""

from robustdml_ops.engine.triton.anchor_lse import anchor_lse, forward_only
from robustdml_ops.engine.triton.device import unavailable
from robustdml_ops.engine.triton.pairs import pair_hinge, pair_lse
from robustdml_ops.engine.triton.rows import finish, normalize_rows, normalize_rows_backward, operand
from robustdml_ops.engine.triton.vmf import evaluate_vmf

__all__ = [
    "anchor_lse",
    "evaluate_vmf",
    "finish",
    "forward_only",
    "normalize_rows",
    "normalize_rows_backward",
    "operand",
    "pair_hinge",
    "pair_lse",
    "unavailable",
]
