"""The second derivative of the class sweep, a differentiable chunk of classes at a time."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.rows.backends import gradient_buffer
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Results
from robustdml_ops.engine.similarity_chunks import cache_rows
from robustdml_ops.ops.classes.problem import ClassProblem


def second_derivative(problem: ClassProblem, *tensors: Any) -> Results:
    """Derivatives of ⟨gradients of both matrices, vectors⟩ with respect to matrices and upstream gradients.

    Let l be the logits, p = e^(l − lse), and l' their derivative along the vectors. Then lse' = Σ_k p l', which takes a
    first pass over the classes, and the derivative is that of Σ_k c l' + dlse p (l' − lse') l with c = dlse p +
    dtarget at the labels, where all factors of l and l' are constants.
    """
    X, P, lse, dlse, dtarget, vX, vP = tensors
    vectors = tuple(torch.zeros_like(t) if v is None else v for t, v in ((X, vX), (P, vP)))
    lse = lse.masked_fill(lse == -torch.inf, torch.inf)
    along_lse, along_target = torch.zeros_like(lse), torch.zeros_like(dtarget)
    for _, _, _, along, p, (index, inside) in _chunks(problem, X, P, lse, vectors):
        along_lse += (p * along).sum(0)
        along_target += (along.gather(0, index) * inside).t().view_as(dtarget)
    of_labels = dtarget.view(len(X), -1).t()
    dX, dP = torch.zeros_like(X), gradient_buffer(P)
    with torch.enable_grad():
        for rows, leaves, value, along, p, (index, inside) in _chunks(problem, X, P, lse, vectors):
            of_along = (dlse * p).detach().scatter_add(0, index, of_labels * inside)
            of_value = (dlse * p * (along - along_lse)).detach()
            dX_part, dP[rows] = torch.autograd.grad((of_along * along + of_value * value).sum(), leaves)
            dX += dX_part
    return dX, dP, None, None, along_lse, along_target


def _chunks(problem: ClassProblem, X: Tensor, P: Tensor, lse: Tensor, vectors: Sequence[Tensor]) -> Iterator[Any]:
    """Of chunks of whole classes: rows, leaves, logits (c, B), derivative along ``vectors``, p, labels' places."""
    H = problem.centers
    classes = max(1, cache_rows(len(X) + 2 * X.shape[1], X.device) // H)
    for first in range(0, len(P) // H, classes):
        last = min(len(P) // H, first + classes)
        rows = slice(first * H, last * H)
        leaves = X.detach().requires_grad_(), P[rows].detach().requires_grad_()
        logits = partial(_logits, problem, first, last)
        value, along, (counted, places) = torch.func.jvp(logits, leaves, (vectors[0], vectors[1][rows]), has_aux=True)  # type: ignore[misc]
        yield rows, leaves, value, along, ((value - lse).exp() * counted), places


def _logits(problem: ClassProblem, first: int, last: int, X: Tensor, P: Tensor) -> tuple[Tensor, Any]:
    """Logits (c, B) of the classes ``first:last`` in differentiable PyTorch; which count, 1 or 0; labels' places."""
    dtype = problem.scale.dtype
    V = P.to(dtype)
    S = ((unit_rows_twice(V) if problem.normalize else V) @ unit_rows_twice(X.to(dtype)).t()).view(
        last - first, problem.centers, -1
    )
    pooled = (torch.softmax(S / problem.gamma, 1) * S).sum(1) if problem.pooling == "softmax" else S.amax(1)
    scale = problem.scale if problem.scale.dim() == 0 else problem.scale[first:last, None]
    index, inside = problem.places(first, last)
    at_label = torch.zeros_like(pooled).scatter_add(0, index, inside.to(dtype))
    bias = 0 if problem.bias is None else problem.bias[first:last, None]
    counted = torch.ones_like(pooled)
    if problem.drop_above is not None:
        counted = torch.maximum(1 - (pooled > problem.drop_above).to(dtype), at_label)
    counted = counted * (1 - at_label) if problem.exclude_target else counted
    return pooled * scale + bias + problem.target_bias * at_label, (counted, (index, inside.to(dtype)))
