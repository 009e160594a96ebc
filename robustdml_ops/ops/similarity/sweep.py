"""The sweep that writes cosines, and the one that takes their gradient back: by chunks, no copy of the proxies."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import without_autocast
from robustdml_ops.engine.matrices import gradient_buffer, new_rows
from robustdml_ops.engine.precision import compute_dtype, input_precision, operand_dtype
from robustdml_ops.engine.similarity_chunks import accumulate, product
from robustdml_ops.engine.validation import check_gradient_fits
from robustdml_ops.ops.similarity.backends import SimilarityBackend


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
            direct = target.dtype == compute and target.stride(1) == 1
            U, *_ = unit(P, X.dtype, compute, backend, backend.reads_columns(P))
            if direct:
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
