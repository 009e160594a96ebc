"""The sweep over the pairs of a batch with itself where S is one chunk: it is symmetric, so two products do for three.

A row is an anchor in its row of dS and a candidate in its column: its gradient is (dS + dSᵀ)·U, through one Jacobian.
"""

import torch
from torch import Tensor

from robustdml_ops.engine.similarity_chunks import Chunk, product
from robustdml_ops.engine.validation import check_gradient_fits
from robustdml_ops.ops.pairs.problem import PairBackend, PairBuffers, PairProblem
from robustdml_ops.ops.pairs.sweep_by_chunks import run_chunk
from robustdml_ops.ops.pairs.sweep_by_lanes import symmetric_by_lanes

# Rows of dS + dSᵀ at a time, so that nothing more of size n×n is beside S; elsewhere than on the CPU so many elements.
_ROWS, _ELEMENTS = 256, 1 << 24


def sweep_symmetric(
    anchors: Tensor,
    problem: PairProblem,
    buffers: PairBuffers,
    backend: PairBackend,
    operand: torch.dtype,
    by_lanes: bool,
) -> Tensor | None:
    """Fill ``buffers``; dL/danchors (n, D) in the compute type where ``buffers`` has upstream gradients."""
    (n, D), dtype, new = anchors.shape, buffers.positive.dtype, anchors.new_empty
    U, inverse_norm = new((n, D), dtype=operand), new(n, dtype=dtype)
    short = backend.normalize_rows(anchors, U, inverse_norm)
    S = new((n, n), dtype=dtype)
    dU = None if buffers.upstream_positive is None else new((n, D), dtype=dtype)
    if by_lanes:
        symmetric_by_lanes(U, S, dU, problem, buffers)
    else:
        run_chunk(Chunk(0, n, product(U, U.t(), S), U, inverse_norm, short, None), problem, buffers, backend)
        if dU is not None:
            _symmetric_product(S, U, dU)
    if dU is not None:
        backend.normalize_rows_backward(dU, U, inverse_norm)
        if short:
            check_gradient_fits(dU, inverse_norm, "embeddings")
    return dU


def _symmetric_product(dS: Tensor, U: Tensor, dU: Tensor) -> None:
    """Out: dU = (dS + dSᵀ)·U."""
    n = len(U)
    some = _ROWS if U.device.type == "cpu" else max(_ROWS, _ELEMENTS // n)
    for first in range(0, n, some):
        rows = slice(first, first + some)
        product((dS[rows] + dS[:, rows].t()).to(U.dtype), U, dU[rows])
