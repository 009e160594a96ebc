"""The second derivative of the pair sweep, a differentiable chunk of anchors at a time."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Results, second_derivatives
from robustdml_ops.engine.similarity_chunks import cache_rows
from robustdml_ops.ops.pairs.eager import (
    contrast_terms,
    distances,
    hinge_sums,
    informative,
    mean_weight,
    members,
    near_distances,
)
from robustdml_ops.ops.pairs.problem import (
    DistanceLimits,
    PairContrastProblem,
    PairLSEProblem,
    PairProblem,
)


def second_derivative(problem: PairProblem, terms: Tensor | None, *tensors: Any) -> Results:
    """Derivatives of ⟨gradients, vectors⟩ by matrices and upstream; ``terms`` (2,): divisors of both sides, or None."""
    # Tensors: both matrices, upstream gradients, coefficients; vectors of both matrices and coefficients; some None.
    X, candidates, *upstream, coefficients, vX, v_candidates, v_coefficients = tensors
    if isinstance(problem, PairContrastProblem) and problem.form == "both":
        there = replace(problem, form="outside")
        back = replace(there, sets=problem.sets.turned())
        of_candidates = torch.cat([upstream[0], upstream[0].new_zeros(len(candidates) - len(X))])
        turned = (candidates, X, of_candidates, upstream[1], coefficients, v_candidates, vX, v_coefficients)
        of_rows: Any = second_derivative(there, None, *tensors)
        of_columns: Any = second_derivative(back, None, *turned)
        swapped = (of_columns[1], of_columns[0], of_columns[2][: len(X)], *of_columns[3:])
        return tuple(one + other for one, other in zip(of_rows, swapped, strict=True))
    others, v_others = (X, vX) if candidates is None else (candidates, v_candidates)
    if terms is not None:
        upstream = [factor / number for factor, number in zip(upstream, terms, strict=True)]
    dothers, dX, *dupstream, dcoefficients = second_derivatives(
        partial(_chunk_value, problem, compute_dtype(X, others)),
        (others, X, *upstream, coefficients),
        (v_others, vX, None, None, v_coefficients),
        (False, True, *(factor.dim() == 1 for factor in upstream), False),
        cache_rows(len(others) + 2 * X.shape[1], X.device),
        len(X) if len(others) else 0,  # without candidates the extrema of a row do not exist
    )
    if terms is not None:
        dupstream = [None if one is None else one / number for one, number in zip(dupstream, terms, strict=True)]
    if candidates is None:
        assert dX is not None and dothers is not None
        return (dX + dothers, None, *dupstream, dcoefficients)
    return (dX, dothers, *dupstream, dcoefficients)


def _chunk_value(problem: PairProblem, dtype: torch.dtype, first: int, last: int, *tensors: Any) -> Tensor:
    """Σ_a upstream_a · sum_a over both sums of the anchors ``first:last``. An upstream is one value or one for each."""
    candidates, anchors, upstream_positive, upstream_negative, coefficients = tensors
    S = unit_rows_twice(anchors.to(dtype)) @ unit_rows_twice(candidates.to(dtype)).t()
    positive, negative = members(problem.sets, first, last)
    if isinstance(problem, PairLSEProblem):
        sums = _log_sum_exps(S, positive, negative, problem)
    elif isinstance(problem, PairContrastProblem):
        sums = contrast_terms(coefficients[0] * S + coefficients[1], positive, negative, problem.form)[:2]
    else:
        t = -_distances(S, anchors, candidates, positive | negative) if problem.euclidean else S
        sums = hinge_sums(t, positive, negative, problem)[:2]
    value: Tensor = (upstream_positive * sums[0] + upstream_negative * sums[1]).sum()
    return value


def _distances(S: Tensor, anchors: Tensor, candidates: Tensor, members: Tensor) -> Tensor:
    """As :func:`robustdml_ops.ops.pairs.eager.distances`; constants up to the resolution."""
    near, resolution = DistanceLimits.of(S)
    values = distances(S.detach(), anchors.detach(), candidates.detach(), members, near)
    far = values >= near
    result = torch.where(far, (2 - 2 * S).masked_fill(~far, 1).sqrt(), values)
    i, j = ((values < near) & (values > resolution) & members).nonzero(as_tuple=True)
    exact = near_distances(anchors[i].double(), candidates[j].double())
    return result.index_put((i, j), exact.to(result.dtype))


def _log_sum_exps(S: Tensor, positive: Tensor, negative: Tensor, problem: PairLSEProblem) -> tuple[Tensor, ...]:
    if problem.epsilon is not None:
        positive, negative = informative(S.detach(), positive, negative, problem.epsilon)
    sums = []
    for exponent, side in (
        (problem.alpha * (problem.base - S), positive),
        (problem.beta * (S - problem.base), negative),
    ):
        lse = torch.logsumexp(torch.nn.functional.pad(exponent.masked_fill(~side, -torch.inf), (1, 0)), dim=1)
        weights = problem.candidate_weights
        sums.append(lse if weights is None else lse * mean_weight(side, weights))
    return tuple(sums)
