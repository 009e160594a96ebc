"""Unit rows and their Jacobian in the native module.

Temporaries of the CUDA functions may be freed while their kernels still wait: PyTorch's allocator hands memory to later
work of the same stream only.
"""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.matrices import by_columns, new_rows
from robustdml_ops.engine.rows.backend import RowsBackend


class NativeRows(RowsBackend):
    """On the CPU and on CUDA devices."""

    temporaries = 0

    def reads_columns(self, P: Tensor) -> bool:
        return not module.on_gpu(P) and by_columns(P)

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> bool:
        if module.on_gpu(U):
            rows = P.contiguous()
            _on_stream(f"normalize_rows_cuda_{module.SUFFIX[P.dtype]}", rows, U, inverse_norm)
            return False
        return not _on_threads("normalize_rows", _readable(P, U.dtype, by_columns(U)), U, inverse_norm)

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        if module.on_gpu(U):
            _on_stream("normalize_rows_backward_cuda", G, U, inverse_norm)
            return
        _on_threads("normalize_rows_backward", G, U, inverse_norm)

    def as_they_are(self, P: Tensor, dtype: torch.dtype) -> Tensor | None:
        """On the CPU, where norms are taken after the product, while P is warm: a pass before would cost time."""
        return None if module.on_gpu(P) else _readable(P, dtype, by_columns(P))

    def inverse_norms(self, P: Tensor, inverse_norm: Tensor) -> bool:
        return bool(_on_threads("inverse_norms", _readable(P, P.dtype, by_columns(P)), None, inverse_norm))

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor, unit: bool) -> None:
        if unit:
            super().finish(G, V, inverse_norm, unit)
            return
        _on_threads("project_rows", G, V, inverse_norm)


def _readable(P: Tensor, dtype: torch.dtype, columns: bool) -> Tensor:
    """P in ``dtype`` with the elements of its columns, or of its rows, side by side: itself where it is so."""
    if P.dtype == dtype and P.stride(0 if columns else 1) == 1:
        return P
    return new_rows(P, len(P), columns, dtype).copy_(P)


def _on_threads(name: str, rows: Tensor, other: Tensor | None, inverse_norm: Tensor) -> Any:
    kernel = getattr(module.library, f"{name}_{module.SUFFIX[rows.dtype]}")
    first = (rows.data_ptr(), *rows.stride())
    matrices = (first,) if other is None else (first, (other.data_ptr(), *other.stride()))
    return kernel(*matrices, inverse_norm.data_ptr(), *rows.shape, torch.get_num_threads())


def _on_stream(name: str, rows: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    kernel = getattr(module.library, f"{name}_{module.SUFFIX[U.dtype]}")
    with module.current_stream(U.device) as stream:
        kernel(rows.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, stream)
