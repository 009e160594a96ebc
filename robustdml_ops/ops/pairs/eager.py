"""The sums of a chunk of pairs in plain PyTorch, and their second derivative, a chunk of anchors at a time."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.engine.rows.lengths import log_one_plus_sum, unit_rows_twice
from robustdml_ops.engine.second_derivatives import Results, second_derivatives
from robustdml_ops.engine.similarity_chunks import Chunk, cache_rows
from robustdml_ops.ops.pairs.problem import (
    DistanceLimits,
    PairBackend,
    PairContrastProblem,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
    PairSets,
    PairSums,
)

_ELEMENTS = 1 << 20  # of the rows of near pairs at a time


class EagerPairs(PairBackend):
    """On every device, without a compiler."""

    def pair_lse(self, chunk: Chunk, problem: PairLSEProblem, sums: PairSums) -> None:
        S, (positive, negative) = chunk.S, members(problem.sets, chunk.first, chunk.last)
        if problem.epsilon is not None:
            positive, negative = informative(S, positive, negative, problem.epsilon)
        distance = problem.base - S
        W_positive = log_one_plus_sum((problem.alpha * distance).masked_fill_(~positive, -torch.inf), sums.positive)
        W_negative = log_one_plus_sum(distance.mul_(-problem.beta).masked_fill_(~negative, -torch.inf), sums.negative)
        if problem.candidate_weights is not None:
            for W, out, side in ((W_positive, sums.positive, positive), (W_negative, sums.negative, negative)):
                mean = mean_weight(side, problem.candidate_weights)
                out.mul_(mean)
                W.mul_(mean[:, None])
        if sums.upstream is None:
            return
        W_positive *= -problem.alpha * sums.upstream[0].reshape(-1, 1)
        W_negative *= problem.beta * sums.upstream[1].reshape(-1, 1)
        torch.add(W_positive, W_negative, out=S)

    def pair_hinge(self, chunk: Chunk, problem: PairHingeProblem, sums: PairSums) -> None:
        S, (positive, negative) = chunk.S, members(problem.sets, chunk.first, chunk.last)
        assert sums.counts is not None
        limits = DistanceLimits.of(chunk.V)
        t = S
        if problem.euclidean:
            assert sums.rows is not None
            anchors, candidates = sums.rows.anchors[chunk.first : chunk.last], sums.rows.candidates
            t = distances(S, anchors, candidates, positive | negative, limits.near).neg_()
        positive_sum, negative_sum, positive, negative = hinge_sums(t, positive, negative, problem)
        sums.positive.copy_(positive_sum)
        sums.negative.copy_(negative_sum)
        torch.stack([positive.sum(1), negative.sum(1)], out=sums.counts)
        if sums.upstream is None:
            return
        # dt/ds: 1, or 1 / distance.
        slope = -t.reciprocal().masked_fill_(-t <= limits.resolution, 0) if problem.euclidean else torch.ones_like(S)
        gradient = positive * -sums.upstream[0].reshape(-1, 1) + negative * sums.upstream[1].reshape(-1, 1)
        torch.mul(gradient, slope, out=S)

    def pair_contrast(self, chunk: Chunk, problem: PairContrastProblem, sums: PairSums) -> None:
        S, (positive, negative) = chunk.S, members(problem.sets, chunk.first, chunk.last)
        scale, bias = problem.coefficients
        Z = scale * S + bias
        loss, lse, of_loss, of_lse = contrast_terms(Z, positive, negative, problem.form)
        sums.positive.copy_(loss)
        sums.negative.copy_(lse)
        if sums.upstream is None:
            return
        dZ = of_loss.mul_(sums.upstream[0].reshape(-1, 1)).add_(of_lse.mul_(sums.upstream[1].reshape(-1, 1)))
        if problem.columns is not None:
            column_lse, column_upstream = problem.columns
            paired = (positive | negative) & positive.any(1, keepdim=True)
            dZ += (Z - column_lse).masked_fill_(~paired, -torch.inf).exp_() * column_upstream
        assert sums.dcoefficients is not None
        torch.stack([(dZ * S).sum(1), dZ.sum(1)], out=sums.dcoefficients)
        torch.mul(dZ, scale, out=S)


def hinge_sums(t: Tensor, positive: Tensor, negative: Tensor, problem: PairHingeProblem) -> tuple[Tensor, ...]:
    """Sums of hinges (c,) of both sides of t (c, m), and which pairs are in them, (c, m) bool; differentiable."""
    # Negated, so that a NaN stays and reaches the result.
    positive, negative = positive & ~(t >= problem.positive_margin), negative & ~(t <= problem.negative_margin)
    above = (problem.positive_margin + problem.positive_offset - t).masked_fill_(~positive, 0).sum(1)
    below = (t - (problem.negative_margin - problem.negative_offset)).masked_fill_(~negative, 0).sum(1)
    return above, below, positive, negative


def contrast_terms(Z: Tensor, positive: Tensor, negative: Tensor, form: str) -> tuple[Tensor, ...]:
    """Losses and log-sum-exps (c,) of the logits Z (c, m), and the derivatives of both by Z; differentiable."""
    log_sigmoid, sigmoid = torch.nn.functional.logsigmoid, torch.sigmoid
    if form == "sigmoid":
        loss = -torch.where(positive, log_sigmoid(Z), torch.where(negative, log_sigmoid(-Z), 0)).sum(1)
        of_loss = torch.where(positive, -sigmoid(-Z), torch.where(negative, sigmoid(Z), 0))
        return loss, torch.zeros_like(loss), of_loss, torch.zeros_like(Z)
    if form == "each":
        lse, shares = _softmax(Z, negative)
        above = torch.where(positive, sigmoid(lse[:, None] - Z), 0)
        loss = -torch.where(positive, log_sigmoid(Z - lse[:, None]), 0).sum(1)
        return loss, torch.zeros_like(loss), above.sum(1, keepdim=True) * shares - above, torch.zeros_like(Z)
    some, number = positive.any(1), positive.sum(1).clamp(min=1).to(Z.dtype)
    lse, shares = _softmax(Z, (positive | negative) & some[:, None])
    if form == "outside":
        # Of differences: a loss near 0 keeps its digits.
        loss = torch.where(positive, lse[:, None] - Z, 0).sum(1) / number
        target = positive.to(Z.dtype) / number[:, None]
    else:
        of_positives, target = _softmax(Z, positive)
        loss = (lse - of_positives + number.log()).masked_fill(~some, 0)
    return loss, lse.masked_fill(~some, 0), shares - target, shares


def _softmax(Z: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exps (c,) over the members of each row, the least number without any, and their shares (c, m)."""
    masked, least = Z.masked_fill(~members, -torch.inf), torch.finfo(Z.dtype).min
    shift = masked.detach().amax(1, keepdim=True).clamp(min=least)
    terms = (masked - shift).exp()
    total = terms.sum(1, keepdim=True)
    total = total.masked_fill(total == 0, 1)  # no members
    return (shift + total.log())[:, 0].masked_fill(~members.any(1), least), terms / total


def distances(S: Tensor, anchors: Tensor, candidates: Tensor, members: Tensor, near: float) -> Tensor:
    """√(2 − 2s), and what is below ``near`` of the rows themselves where it matters, ``members``; (c, m)."""
    result = (2 - 2 * S).clamp_(min=0).sqrt_()
    # On a GPU this waits for the stream. Native and Triton kernels do not.
    pairs = ((result < near) & members).nonzero()
    for part in torch.split(pairs, max(1, _ELEMENTS // anchors.shape[1])):
        i, j = part.unbind(1)
        result[i, j] = near_distances(anchors[i].double(), candidates[j].double()).to(result.dtype)
    return result


def near_distances(P: Tensor, Q: Tensor) -> Tensor:
    """Distances (k,) of the directions of rows (k, D) that almost agree, in double; differentiable where not 0.

    d²|u||v| = |u − v|² − (|u| − |v|)² with u and v the rows over their largest elements; below 10⁻¹⁴ d is 0.
    """
    u, v = (rows / rows.detach().abs().amax(1, keepdim=True) for rows in (P, Q))
    u_norm, v_norm = (rows.square().sum(1).sqrt() for rows in (u, v))
    radial = ((u - v) * (u + v)).sum(1) / (u_norm + v_norm)
    square = ((u - v).square().sum(1) - radial.square()) / (u_norm * v_norm)
    apart = square > 1e-28
    return square.masked_fill(~apart, 1).sqrt().masked_fill(~apart, 0)


def mean_weight(side: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``weights`` (m,) over the members of each row's set; 0 for an empty set."""
    return (side.to(weights.dtype) @ weights) / side.sum(1).clamp(min=1)


def members(sets: PairSets, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Positives and negatives of the anchors ``first:last``, (c, m) bool."""
    labels = sets.labels[first:last, None]
    same = labels == sets.candidate_labels
    present = (labels != ABSENT) & (sets.candidate_labels != ABSENT)
    positive, negative = same & present, present & ~same
    if sets.itself:
        positive.diagonal(first).fill_(False)
    return positive, negative


def informative(S: Tensor, positive: Tensor, negative: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mining: the informative pairs of both sets."""
    lowest_positive = S.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    highest_negative = S.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    # Negated, so that a NaN stays and reaches the result.
    return positive & ~(S - epsilon >= highest_negative), negative & ~(S + epsilon <= lowest_positive)


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
    sides = members(problem.sets, first, last)
    sums: Any = _SUMS[problem.kind](problem, S, sides, anchors, candidates, coefficients)
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


def _log_sum_exps(problem: PairLSEProblem, S: Tensor, sides: tuple[Tensor, Tensor], *_: Any) -> tuple[Tensor, ...]:
    if problem.epsilon is not None:
        sides = informative(S.detach(), *sides, problem.epsilon)
    sums = []
    exponents = problem.alpha * (problem.base - S), problem.beta * (S - problem.base)
    for exponent, side in zip(exponents, sides, strict=True):
        lse = torch.logsumexp(torch.nn.functional.pad(exponent.masked_fill(~side, -torch.inf), (1, 0)), dim=1)
        weights = problem.candidate_weights
        sums.append(lse if weights is None else lse * mean_weight(side, weights))
    return tuple(sums)


def _hinges(problem: PairHingeProblem, S: Tensor, sides: tuple[Tensor, Tensor], *rows: Tensor) -> tuple[Tensor, ...]:
    t = -_distances(S, rows[0], rows[1], sides[0] | sides[1]) if problem.euclidean else S
    return hinge_sums(t, *sides, problem)[:2]


def _contrasts(
    problem: PairContrastProblem, S: Tensor, sides: tuple[Tensor, Tensor], *tensors: Tensor
) -> tuple[Tensor, ...]:
    scale, bias = tensors[2]
    return contrast_terms(scale * S + bias, *sides, problem.form)[:2]


# Both sums of the anchors of a chunk, twice differentiable.
_SUMS: dict[str, Any] = {"pair_lse": _log_sum_exps, "pair_hinge": _hinges, "pair_contrast": _contrasts}
