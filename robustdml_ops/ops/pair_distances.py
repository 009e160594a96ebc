"""All distances between the unit rows of a batch, right for near rows, too."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from robustdml_ops.backends.dispatch import has_no_values, op_in_graphs, refuse_compiled_transform, registered_op

_NEAR = 1 / 64  # squared; above it the product's rounding of a few ε is below 1e-5 of the distance
_ELEMENTS = 1 << 23  # of differences at a time; on a GPU, where each chunk takes a dozen launches, eight times as many


def pair_distances(X: Tensor, own: slice | None = None) -> Tensor:
    """‖x_i − x_j‖ of rows of length 1 or 0, (B, B), in eager mode differentiable twice.

    ``own``: (b, B), the rows of one of several processes that have the others; no graph.
    """
    refuse_compiled_transform()
    distances: Tensor = pair_distances_op(X) if own is None and has_no_values(X) else _pair_distances(X, own)
    return distances


def _pair_distances(X: Tensor, own: slice | None = None) -> Tensor:
    rows, places = X if own is None else X[own], torch.arange(len(X), device=X.device)
    itself = (places if own is None else places[own])[:, None] == places
    squared = _by_product(rows, X, itself) if X.device.type == "cpu" else by_difference(rows, X)
    apart = (squared.detach() != 0) & ~itself  # != rather than >, so that a NaN stays
    return torch.where(apart, squared.masked_fill(~apart, 1).sqrt(), 0.0)


def _by_product(rows: Tensor, X: Tensor, itself: Tensor) -> Tensor:
    """‖x_i − x_j‖² (b, B) by a product, of near pairs by their difference."""
    squared = rows.square().sum(1, keepdim=True) + X.square().sum(1) - 2 * (rows @ X.t())
    near = ((squared.detach() < _NEAR) & ~itself).nonzero().unbind(1)
    return squared.index_put(near, _of_pairs(rows, X, *near)) if len(near[0]) else squared


def _of_pairs(rows: Tensor, X: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """‖x_i − x_j‖² of pairs (n,); of many pairs backward computes the differences again, a chunk at a time."""
    at_a_time = max(1, _ELEMENTS // max(1, X.shape[1]))
    chunks = zip(torch.split(i, at_a_time), torch.split(j, at_a_time), strict=True)
    return _joined([(rows, X, *chunk) for chunk in chunks], lambda rows, X, i, j: rows[i] - X[j])


def by_difference(rows: Tensor, X: Tensor) -> Tensor:
    """‖x_i − x_j‖² (b, B) of a GPU: a count of near pairs stalls its stream, and a gather's gradient has no order."""
    return _joined([(some, X) for some in _chunks(rows, X)], lambda some, X: some[:, None] - X)


def _chunks(rows: Tensor, X: Tensor) -> tuple[Tensor, ...]:
    """Slices of ``rows`` whose differences from all of X are few enough."""
    most = _ELEMENTS if X.device.type == "cpu" else 8 * _ELEMENTS
    return torch.split(rows, max(1, most // max(1, X.numel())))


def _joined(chunks: list[tuple[Tensor, ...]], difference: Any) -> Tensor:
    """Squared lengths of the differences of all chunks."""

    def squared(*chunk: Tensor) -> Tensor:
        found: Tensor = difference(*chunk).square().sum(-1)
        return found

    if len(chunks) == 1:
        return squared(*chunks[0])
    return torch.cat([checkpoint(squared, *each, use_reentrant=False, preserve_rng_state=False) for each in chunks])


@registered_op("robustdml_ops::pair_distances")
def pair_distances_op(X: Tensor) -> Tensor:
    """Registered for compiled graphs: how many pairs are near is known at run time alone."""
    with torch.no_grad():
        return _pair_distances(X)


@pair_distances_op.register_fake
def _(X: Tensor) -> Tensor:
    return X.new_empty(X.shape[0], X.shape[0])


@op_in_graphs("pair_distances_backward")
def pair_distances_backward(X: Tensor, distances: Tensor, upstream: Tensor) -> Tensor:
    """Gradient of :func:`pair_distances_op`: Σ_j (G_ij + G_ji)(x_i − x_j) with G = upstream/distance."""
    G = upstream / distances.masked_fill(distances == 0, torch.inf)
    G = G + G.t()
    if X.device.type != "cpu":
        return gradient_by_difference(X, G)
    near = distances.square() < _NEAR
    i, j = (near & (G != 0)).nonzero().unbind(1)
    at_a_time = max(1, _ELEMENTS // max(1, X.shape[1]))
    of_near, G = G[i, j], G.masked_fill(near, 0)
    gradient = G.sum(1, keepdim=True) * X - G @ X
    for rows, columns, weights in zip(*(torch.split(each, at_a_time) for each in (i, j, of_near)), strict=True):
        gradient.index_add_(0, rows, weights[:, None] * (X[rows] - X[columns]))
    return gradient


def gradient_by_difference(X: Tensor, G: Tensor) -> Tensor:
    """Σ_j G_ij (x_i − x_j), (B, D), of a symmetric G (B, B)."""
    chunks = _chunks(X, X)
    of_chunks = torch.split(G, [len(rows) for rows in chunks])
    return torch.cat([(g[:, None] @ (rows[:, None] - X)).squeeze(1) for g, rows in zip(of_chunks, chunks, strict=True)])


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _backward(ctx: Any, upstream: Tensor) -> Tensor:
    X, distances = ctx.saved_tensors
    return pair_distances_backward(X, distances, upstream)


pair_distances_op.register_autograd(_backward, setup_context=_setup_context)
