"""All distances between the unit rows of a batch, right for near rows, too."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from robustdml_ops.backends.dispatch import has_no_values, op_in_graphs, registered_op

_NEAR = 1 / 64  # squared; above it the product's rounding of a few ε is below 1e-5 of the distance
_ELEMENTS = 1 << 23  # of differences that exist at a time


def pair_distances(X: Tensor) -> Tensor:
    """‖x_i − x_j‖ of rows of length 1 or 0, in eager mode differentiable twice; near pairs from their difference."""
    distances: Tensor = pair_distances_op(X) if has_no_values(X) else _pair_distances(X)
    return distances


def _pair_distances(X: Tensor) -> Tensor:
    squared_length = X.square().sum(1)
    squared = squared_length[:, None] + squared_length - 2 * (X @ X.t())
    itself = torch.eye(len(X), dtype=torch.bool, device=X.device)
    rows, columns = _pairs_by_difference(squared.detach())
    if len(rows):
        places = torch.cat([rows, columns]), torch.cat([columns, rows])
        squared = squared.index_put(places, _squared_differences(X, rows, columns).repeat(2))
    apart = (squared.detach() != 0) & ~itself  # != rather than >, so that a NaN stays
    return torch.where(apart, squared.masked_fill(~apart, 1).sqrt(), 0.0)


def own_distances(X: Tensor, own: slice) -> Tensor:
    """Rows ``own`` of :func:`pair_distances`, (b, B), for one of several processes that have the others; no graph."""
    places = torch.arange(len(X), device=X.device)
    squared_length = X.square().sum(1)
    squared = squared_length[own, None] + squared_length - 2 * (X[own] @ X.t())
    itself = places[own, None] == places
    if X.device.type == "cpu":  # as `_pairs_by_difference`
        rows, columns = ((squared.detach() < _NEAR) & ~itself).nonzero().unbind(1)
    else:
        rows, columns = places[: len(squared)].repeat_interleave(len(X)), places.repeat(len(squared))
    if len(rows):
        squared = squared.index_put((rows, columns), _squared_differences(X, rows + own.start, columns))
    apart = (squared.detach() != 0) & ~itself
    return torch.where(apart, squared.masked_fill(~apart, 1).sqrt(), 0.0)


def _pairs_by_difference(squared: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns above the diagonal: of the near pairs, off the CPU of all, as a count would stall the stream."""
    if squared.device.type == "cpu":
        rows, columns = (squared < _NEAR).triu(1).nonzero().unbind(1)
    else:
        rows, columns = torch.triu_indices(len(squared), len(squared), 1, device=squared.device).unbind(0)
    return rows, columns


def _squared_differences(X: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """‖x_i − x_j‖² of pairs (n,); of many pairs backward computes the differences again, a chunk at a time."""
    at_a_time = max(1, _ELEMENTS // max(1, X.shape[1]))
    if len(rows) <= at_a_time:
        return _difference(X, rows, columns)
    chunks = zip(torch.split(rows, at_a_time), torch.split(columns, at_a_time), strict=True)
    return torch.cat(
        [checkpoint(_difference, X, i, j, use_reentrant=False, preserve_rng_state=False) for i, j in chunks]
    )


def _difference(X: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return (X.index_select(0, rows) - X.index_select(0, columns)).square().sum(1)


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
    rows, columns = _pairs_by_difference(distances.square())
    of_near = G[rows, columns]
    G[rows, columns] = 0
    G[columns, rows] = 0
    gradient = G.sum(1, keepdim=True) * X - G @ X
    at_a_time = max(1, _ELEMENTS // max(1, X.shape[1]))
    for i, j, weights in zip(*(torch.split(t, at_a_time) for t in (rows, columns, of_near)), strict=True):
        difference = weights[:, None] * (X.index_select(0, i) - X.index_select(0, j))
        gradient.index_add_(0, i, difference).index_add_(0, j, -difference)
    return gradient


def _setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _backward(ctx: Any, upstream: Tensor) -> Tensor:
    X, distances = ctx.saved_tensors
    return pair_distances_backward(X, distances, upstream)


pair_distances_op.register_autograd(_backward, setup_context=_setup_context)
