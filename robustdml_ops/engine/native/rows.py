"""Unit rows and their Jacobian in the native module.

Temporaries of the CUDA functions may be freed while their kernels still wait: PyTorch's allocator hands memory to later
work of the same stream only.
"""

import torch
from torch import Tensor

from robustdml_ops.engine.native import module


def normalize_rows(P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """U = P / |P| by rows and inverse_norm = 1 / |P|; zero rows give zeros."""
    if module.on_gpu(U):
        with module.current_stream(U.device) as stream:
            _normalize_rows_cuda(P, U, inverse_norm, stream)
        return
    rows = P.to(U.dtype).contiguous()
    kernel = getattr(module.library, f"normalize_rows_{module.SUFFIX[U.dtype]}")
    kernel(rows.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, torch.get_num_threads())


def normalize_rows_backward(G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """G ← (G − (G·U) U) · inverse_norm by rows: the Jacobian of the normalisation, in place."""
    if module.on_gpu(U):
        with module.current_stream(U.device) as stream:
            _normalize_rows_backward_cuda(G, U, inverse_norm, stream)
        return
    kernel = getattr(module.library, f"normalize_rows_backward_{module.SUFFIX[U.dtype]}")
    kernel(G.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, torch.get_num_threads())


def operand(P: Tensor, U: Tensor, inverse_norm: Tensor) -> Tensor:
    """What enters the products for the anchors P: on a GPU unit rows in ``U``, on the CPU P itself.

    A CPU reads P from memory while it multiplies, at no cost in time; a pass before that would cost one. Norms are
    taken in :func:`anchor_lse`, while P is warm.
    """
    if U.is_cuda:
        normalize_rows(P, U, inverse_norm)
        return U
    return P.to(U.dtype).contiguous()


def finish(G: Tensor, V: Tensor, inverse_norm: Tensor) -> None:
    """G ← dL/dP, where G = dL/dSᵀ·X and V came from :func:`operand`."""
    if G.is_cuda:
        normalize_rows_backward(G, V, inverse_norm)
        return
    kernel = getattr(module.library, f"project_rows_{module.SUFFIX[G.dtype]}")
    kernel(G.data_ptr(), V.data_ptr(), inverse_norm.data_ptr(), *G.shape, torch.get_num_threads())


def _normalize_rows_cuda(P: Tensor, U: Tensor, inverse_norm: Tensor, stream: int) -> None:
    rows = P.contiguous()
    kernel = getattr(module.library, f"normalize_rows_cuda_{module.SUFFIX[P.dtype]}_{module.SUFFIX[U.dtype]}")
    kernel(rows.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, stream)


def _normalize_rows_backward_cuda(G: Tensor, U: Tensor, inverse_norm: Tensor, stream: int) -> None:
    kernel = getattr(module.library, f"normalize_rows_backward_cuda_{module.SUFFIX[U.dtype]}")
    kernel(G.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, stream)
