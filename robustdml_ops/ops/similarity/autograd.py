"""The sweeps that write cosines and take their gradient back, by chunks of the proxies, as an autograd function.

Compiled graphs call ``robustdml_ops::similarity`` and its gradient.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import (
    SweepFunction,
    choose,
    compute_dtype,
    has_no_values,
    op_in_graphs,
    operand_dtype,
    refuse_vmap,
    without_autocast,
)
from robustdml_ops.backends.triton_device import input_precision
from robustdml_ops.engine.rows.backends import gradient_buffer, new_rows
from robustdml_ops.engine.rows.lengths import unit_rows_backward, unit_rows_twice
from robustdml_ops.engine.similarity_chunks import accumulate, product
from robustdml_ops.engine.validation import check_gradient_fits
from robustdml_ops.ops.similarity.backends import BACKENDS, SimilarityBackend


class Similarity(SweepFunction):
    """Cosines, in a matrix of their own."""

    @staticmethod
    @op_in_graphs("similarity", lambda X, P, dtype, _: X.new_empty((X.shape[0], P.shape[0]), dtype=dtype))
    def forward(embeddings: Tensor, proxies: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
        """(B, C) in ``dtype``."""
        S = embeddings.new_empty((len(embeddings), len(proxies)), dtype=dtype)
        similarity_sweep(embeddings, proxies, S, chosen(embeddings, proxies, backend))
        return S

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        embeddings, proxies, _, ctx.backend = inputs
        ctx.save_for_backward(embeddings, proxies)

    @staticmethod
    def backward(ctx: Any, dS: Tensor) -> tuple[Tensor | None, ...]:
        """Two products through the Jacobian of the normalisation; in differentiable PyTorch under create_graph."""
        refuse_vmap(dS)
        X, P = ctx.saved_tensors
        want = ctx.needs_input_grad[:2]
        gradients: tuple[Tensor | None, Tensor | None]
        if torch.is_grad_enabled() and not has_no_values(X):
            # The matrix is there anyway, so dense expressions of its size are no loss.
            compute = compute_dtype(X, P)
            rows, columns, upstream = X.to(compute), P.to(compute), dS.to(compute)
            with without_autocast(X.device):
                gradients = (
                    unit_rows_backward(rows, upstream @ unit_rows_twice(columns)).to(X.dtype) if want[0] else None,
                    unit_rows_backward(columns, upstream.t() @ unit_rows_twice(rows)).to(P.dtype) if want[1] else None,
                )
        else:
            gradients = cosine_gradients(X, P, dS, want, ctx.backend)
        return (gradients[0] if want[0] else None, gradients[1] if want[1] else None, None, None)


def chosen(embeddings: Tensor, proxies: Tensor, backend: str) -> SimilarityBackend:
    """The backend that serves both."""
    return choose(BACKENDS, backend, embeddings.device, compute_dtype(embeddings, proxies))


def _no_gradients(X: Tensor, P: Tensor, dS: Tensor, want: Sequence[bool], backend: str) -> tuple[Tensor, Tensor]:
    return X.new_empty(X.shape if want[0] else 0), gradient_buffer(P) if want[1] else P.new_empty(0)


@op_in_graphs("similarity_gradient", _no_gradients)
def cosine_gradients(X: Tensor, P: Tensor, dS: Tensor, want: Sequence[bool], backend: str) -> tuple[Tensor, Tensor]:
    """Both gradients; empty where they are not wanted."""
    dX, dP = similarity_sweep_backward(X, P, dS, chosen(X, P, backend), want)
    return X.new_empty(0) if dX is None else dX, P.new_empty(0) if dP is None else dP


def similarity_sweep(embeddings: Tensor, proxies: Tensor, S: Tensor, backend: SimilarityBackend) -> None:
    """S (B, C) ← cosines of embeddings (B, D) with proxies (C, D), a chunk of proxies at a time: 2·B·C·D flops."""
    if S.numel() == 0:
        return
    precision = input_precision(embeddings.device)
    if backend.fused(embeddings, proxies, S, precision):
        return
    compute = compute_dtype(embeddings, proxies)
    with without_autocast(embeddings.device):
        X, *_ = unit(embeddings, operand_dtype(compute, embeddings, proxies), compute, backend)
        for columns in _chunks(proxies):
            P, target = proxies[columns], S[:, columns]
            U, *_ = unit(P, X.dtype, compute, backend, backend.reads_columns(P))
            if S.dtype == compute:
                product(X, U.t(), target)
            else:
                target.copy_(product(X, U.t(), target.new_empty(target.shape, dtype=compute)))


def similarity_sweep_backward(
    embeddings: Tensor, proxies: Tensor, dS: Tensor, backend: SimilarityBackend, want: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """dL/dembeddings (B, D) and dL/dproxies (C, D), in their types, of dL/dS (B, C): 2·B·C·D flops for each."""
    compute = compute_dtype(embeddings, proxies)
    with without_autocast(embeddings.device):
        operand = operand_dtype(compute, embeddings, proxies)
        X, X_inverse_norm, X_short = unit(embeddings, operand, compute, backend)
        dX = embeddings.new_zeros(embeddings.shape, dtype=compute) if want[0] else None
        dP = gradient_buffer(proxies).zero_() if want[1] else None
        if dS.numel():
            for columns in _chunks(proxies):
                dS_chunk = dS[:, columns].to(X.dtype)
                P = proxies[columns]
                U, inverse_norm, short = unit(P, X.dtype, compute, backend, backend.reads_columns(P))
                if dX is not None:
                    accumulate(dX, dS_chunk, U)
                if dP is not None:
                    dU = product(dS_chunk.t(), X, torch.empty_like(U, dtype=compute))
                    backend.normalize_rows_backward(dU, U, inverse_norm)
                    if short:
                        check_gradient_fits(dU, inverse_norm, "proxies", columns.start)
                    dP[columns] = dU
        if dX is not None:
            backend.normalize_rows_backward(dX, X, X_inverse_norm)
            if X_short:
                check_gradient_fits(dX, X_inverse_norm, "embeddings")
    return None if dX is None else dX.to(embeddings.dtype), dP


def unit(
    rows: Tensor, operand: torch.dtype, compute: torch.dtype, backend: SimilarityBackend, columns: bool = False
) -> tuple[Tensor, Tensor, bool]:
    """Unit rows in the operand type, by rows or by columns, 1 / their lengths, and whether some are short."""
    U = new_rows(rows, len(rows), columns, operand)
    inverse_norm = rows.new_empty(len(rows), dtype=compute)
    short = backend.normalize_rows(rows, U, inverse_norm)
    return U, inverse_norm, short


def _chunks(proxies: Tensor) -> Iterator[slice]:
    """Rows that take a megabyte or a few, and enough of them for the product to run at full rate."""
    C, D = proxies.shape
    rows = max(16384 if proxies.is_cuda else 2048, (1 << 18) // max(1, D))
    for first in range(0, C, rows):
        yield slice(first, min(C, first + rows))
