"""Epilogues in plain PyTorch: every device, no compiler. The other backends are measured against this one."""

import torch

from robustdml_ops.engine.eager.anchor_lse import anchor_lse, forward_only
from robustdml_ops.engine.eager.class_lse import class_lse, class_lse_backward
from robustdml_ops.engine.eager.pair_hinge import pair_hinge
from robustdml_ops.engine.eager.pair_lse import pair_lse
from robustdml_ops.engine.eager.rows import finish, normalize_rows, normalize_rows_backward, operand
from robustdml_ops.engine.eager.vmf import evaluate_vmf

__all__ = [
    "anchor_lse",
    "class_lse",
    "class_lse_backward",
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


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Nothing keeps PyTorch from running where the tensors already are."""
    return None
