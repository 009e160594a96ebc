"""Similarities as an autograd function; compiled graphs call ``robustdml_ops::similarity`` and its gradient."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values, without_autocast
from robustdml_ops.engine.autograd_functions import op_in_graphs
from robustdml_ops.engine.matrices import gradient_buffer
from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.rows.lengths import unit_rows_backward, unit_rows_twice
from robustdml_ops.ops.similarity.backends import BACKENDS, SimilarityBackend
from robustdml_ops.ops.similarity.sweep import similarity_sweep, similarity_sweep_backward


class Similarity(torch.autograd.Function):
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
