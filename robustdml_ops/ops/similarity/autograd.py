"""Similarities as an autograd function; compiled graphs call ``robustdml_ops::similarity`` and its gradient."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values, without_autocast
from robustdml_ops.engine.gradient_memory import gradient_buffer
from robustdml_ops.engine.older_torch import registered_op
from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.rows.lengths import unit_rows_backward, unit_rows_twice
from robustdml_ops.ops.similarity.backends import BACKENDS, SimilarityBackend
from robustdml_ops.ops.similarity.sweep import similarity_sweep, similarity_sweep_backward


class Similarity(torch.autograd.Function):
    """Cosines, in a matrix of their own."""

    @staticmethod
    def forward(embeddings: Tensor, proxies: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
        """(B, C) in ``dtype``."""
        if has_no_values(embeddings):
            return similarity_op(embeddings, proxies, dtype, backend)  # type: ignore[no-any-return]
        return _similarity(embeddings, proxies, dtype, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the inputs."""
        embeddings, proxies, _, ctx.backend = inputs
        ctx.save_for_backward(embeddings, proxies)

    @staticmethod
    def backward(ctx: Any, dS: Tensor) -> tuple[Tensor | None, ...]:
        """Two products through the Jacobian of the normalisation; in differentiable PyTorch under create_graph."""
        X, P = ctx.saved_tensors
        want = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        if has_no_values(X):
            gradients = similarity_gradient_op(X, P, dS, *want, ctx.backend)
        elif torch.is_grad_enabled():
            # The matrix is there anyway, so dense expressions of its size are no loss.
            compute = compute_dtype(X, P)
            rows, columns, upstream = X.to(compute), P.to(compute), dS.to(compute)
            with without_autocast(X.device):
                gradients = (
                    unit_rows_backward(rows, upstream @ unit_rows_twice(columns)).to(X.dtype) if want[0] else None,
                    unit_rows_backward(columns, upstream.t() @ unit_rows_twice(rows)).to(P.dtype) if want[1] else None,
                )
        else:
            gradients = similarity_sweep_backward(X, P, dS, chosen(X, P, ctx.backend), want)
        return (gradients[0] if want[0] else None, gradients[1] if want[1] else None, None, None)


def chosen(embeddings: Tensor, proxies: Tensor, backend: str) -> SimilarityBackend:
    """The backend that serves both."""
    return choose(BACKENDS, backend, embeddings.device, compute_dtype(embeddings, proxies))


def _similarity(embeddings: Tensor, proxies: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
    S = embeddings.new_empty((len(embeddings), len(proxies)), dtype=dtype)
    similarity_sweep(embeddings, proxies, S, chosen(embeddings, proxies, backend))
    return S


similarity_op = registered_op("robustdml_ops::similarity")(_similarity)


@similarity_op.register_fake
def _(embeddings: Tensor, proxies: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
    return embeddings.new_empty((embeddings.shape[0], proxies.shape[0]), dtype=dtype)


@registered_op("robustdml_ops::similarity_gradient")
def similarity_gradient_op(
    embeddings: Tensor, proxies: Tensor, dS: Tensor, want_embeddings: bool, want_proxies: bool, backend: str
) -> tuple[Tensor, Tensor]:
    """Both gradients; empty where they are not wanted."""
    want = (want_embeddings, want_proxies)
    dX, dP = similarity_sweep_backward(embeddings, proxies, dS, chosen(embeddings, proxies, backend), want)
    return embeddings.new_empty(0) if dX is None else dX, proxies.new_empty(0) if dP is None else dP


@similarity_gradient_op.register_fake
def _(
    embeddings: Tensor, proxies: Tensor, dS: Tensor, want_embeddings: bool, want_proxies: bool, backend: str
) -> tuple[Tensor, Tensor]:
    return (
        embeddings.new_empty(embeddings.shape if want_embeddings else 0),
        gradient_buffer(proxies) if want_proxies else proxies.new_empty(0),
    )
