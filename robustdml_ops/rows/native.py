"""Unit rows and their Jacobian in the native module.

Temporaries of the CUDA functions may be freed while their kernels still wait: PyTorch's allocator hands memory to later
work of the same stream only.
"""

import torch
from torch import Tensor

from robustdml_ops import native_module as module
from robustdml_ops.rows.backend import RowsBackend


class NativeRows(RowsBackend):
    """On the CPU and on CUDA devices."""

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """As :meth:`RowsBackend.normalize_rows`."""
        if module.on_gpu(U):
            rows = P.contiguous()
            _on_stream(f"normalize_rows_cuda_{module.SUFFIX[P.dtype]}", rows, U, inverse_norm)
            return
        rows = P.to(U.dtype).contiguous()
        _on_threads("normalize_rows", rows, U, inverse_norm)

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """As :meth:`RowsBackend.normalize_rows_backward`."""
        if module.on_gpu(U):
            _on_stream("normalize_rows_backward_cuda", G, U, inverse_norm)
            return
        _on_threads("normalize_rows_backward", G, U, inverse_norm)

    def operand(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> Tensor:
        """On a GPU unit rows in ``U``, on the CPU P itself.

        A CPU reads P from memory while it multiplies, at no cost in time; a pass before that would cost one. Norms are
        taken between the products, while P is warm.
        """
        if U.is_cuda:
            return super().operand(P, U, inverse_norm)
        return P.to(U.dtype).contiguous()

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor) -> None:
        """As :meth:`RowsBackend.finish`."""
        if G.is_cuda:
            super().finish(G, V, inverse_norm)
            return
        _on_threads("project_rows", G, V, inverse_norm)


def _on_threads(name: str, rows: Tensor, other: Tensor, inverse_norm: Tensor) -> None:
    kernel = getattr(module.library, f"{name}_{module.SUFFIX[rows.dtype]}")
    kernel(rows.data_ptr(), other.data_ptr(), inverse_norm.data_ptr(), *rows.shape, torch.get_num_threads())


def _on_stream(name: str, rows: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    kernel = getattr(module.library, f"{name}_{module.SUFFIX[U.dtype]}")
    with module.current_stream(U.device) as stream:
        kernel(rows.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, stream)
