"""Epilogues in plain PyTorch: every device, no compiler. The other backends are measured against this one."""

import torch

from robustdml_ops.engine.eager.anchor_lse import anchor_lse, forward_only
from robustdml_ops.engine.eager.class_lse import class_lse, class_lse_backward, fused_class_lse
from robustdml_ops.engine.eager.lambert_w import confidence, lambert_w, superloss
from robustdml_ops.engine.eager.otsu import otsu_confidence, otsu_cut
from robustdml_ops.engine.eager.pair_hinge import pair_hinge
from robustdml_ops.engine.eager.pair_lse import pair_lse
from robustdml_ops.engine.eager.rows import finish, normalize_rows, normalize_rows_backward, operand
from robustdml_ops.engine.eager.self_paced import self_paced_sweep
from robustdml_ops.engine.eager.vmf import evaluate_vmf

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


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Nothing keeps PyTorch from running where the tensors already are."""
    return None
