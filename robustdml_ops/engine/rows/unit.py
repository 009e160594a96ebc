"""Rows of length 1 without a gradient: on a GPU by one kernel of a backend."""

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values
from robustdml_ops.engine.rows.backend import RowsBackend
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.rows.triton import TritonRows

BACKENDS: dict[str, RowsBackend] = {"native": NativeRows(), "triton": TritonRows(), "eager": RowsBackend()}


def normalized(rows: Tensor, dtype: torch.dtype, backend: str | None) -> Tensor:
    """Rows (n, D) of any floating type scaled to length 1, in ``dtype``, float32 or float64; zero rows stay zero."""
    if rows.device.type == "cpu" or has_no_values(rows):
        return unit_rows(rows.to(dtype))
    U = rows.new_empty(rows.shape, dtype=dtype)
    if len(rows):
        choose(BACKENDS, backend, rows.device, dtype).normalize_rows(rows, U, rows.new_empty(len(rows), dtype=dtype))
    return U
