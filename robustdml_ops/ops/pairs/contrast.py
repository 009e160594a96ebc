"""Softmax and logistic losses of every anchor over its candidates, see :class:`PairContrastProblem`.

InfoNCE of two matrices whose rows belong together takes 6 to 8·n·m·D flops for both sides, where two sweeps take 12.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import apply_function, choose, in_eager_mode, operand_dtype
from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.engine.validation import check_finite_candidates, check_finite_embeddings
from robustdml_ops.ops.classes import class_lse
from robustdml_ops.ops.pairs.autograd import Settings, checked_sweep, gradients_of, pair_dtype
from robustdml_ops.ops.pairs.checks import check_pairs, pair_sums
from robustdml_ops.ops.pairs.native import contrast_by_tiles
from robustdml_ops.ops.pairs.problem import PairBuffers, PairContrastProblem, PairSets
from robustdml_ops.ops.pairs.sweep import BACKENDS


class PairContrast(NamedTuple):
    """Losses and log-sum-exps of all anchors; with scales the weighted sum of the losses instead. The rest is None."""

    total: Tensor  # ()
    loss: Tensor  # (n,)
    lse: Tensor  # (n,)
    above: Tensor  # () int64: losses above 0


def pair_contrast(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None = None,
    candidate_labels: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    coefficients: Tensor,
    form: str,
    anchors_first: bool = False,
    backend: str | None = None,
) -> PairContrast:
    """Losses and log-sum-exps, differentiable for any upstream gradient: backward makes the similarities again.

    With constant scales, () or (n,): Σ_a scale_a · loss_a with all gradients, in one sweep of 6·n·m·D flops.
    """
    sets = check_pairs(embeddings, labels, candidates, candidate_labels, anchors_first)
    problem = PairContrastProblem(sets, coefficients, form)
    scales = None if scale is None else (scale, scale.new_zeros(()))
    return PairContrast(*pair_sums(embeddings, candidates, problem, backend, scales, coefficients))


def tower_pairs(
    rows: Tensor, candidates: Tensor, weights: Tensor, own: slice = slice(None)
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Anchors ``rows[own]`` and candidates with labels by which candidate i is the positive of row i.

    The other candidates are its negatives. A weight of 0 takes both rows i out of all sums.
    """
    labels = torch.arange(len(weights), device=weights.device).masked_fill(weights == 0, ABSENT)
    others = torch.cat([labels, labels.new_full((len(candidates) - len(labels),), -1)])
    # All rows are no view: the backward of one copies its gradient.
    return rows if own == slice(None) else rows[own], labels[own], candidates, others


def coefficients_of(
    embeddings: Tensor, candidates: Tensor | None, scale: float | Tensor, bias: float | Tensor = 0.0
) -> Tensor:
    """Scale and bias of the logits, (2,) in the compute type; differentiable in tensors ()."""
    dtype = pair_dtype(embeddings, candidates)
    both = (one if isinstance(one, Tensor) else embeddings.new_full((), one, dtype=dtype) for one in (scale, bias))
    return torch.stack([one.to(embeddings.device, dtype) for one in both])


def contrast_both_ways(
    anchors: Tensor, candidates: Tensor, coefficients: Tensor, weights: Tensor, backend: str | None
) -> Tensor:
    """Σ_i weight_i (log Σ_j e^{z_ij} + log Σ_j e^{z_ji} − 2 z_ii), (), for constant weights (n,) ≥ 0.

    Candidate i is the positive of anchor i; further candidates are negatives of the anchors alone. A weight of 0 takes
    both rows out of all sums.
    """
    if not in_eager_mode(anchors) or len(anchors) == 0:
        return _in_two_sweeps(anchors, candidates, coefficients, weights, backend)
    matrices = anchors, candidates, coefficients
    want = [torch.is_grad_enabled() and matrix.requires_grad for matrix in matrices]
    total: Tensor = apply_function(BothWays, *matrices, weights, backend or "auto", want)[0]
    return total


def _in_two_sweeps(
    anchors: Tensor, candidates: Tensor, coefficients: Tensor, weights: Tensor, backend: str | None
) -> Tensor:
    """The same, by a sweep for each side."""
    total = weights.new_zeros(())
    for rows, others in ((anchors, candidates), (candidates[: len(anchors)], anchors)):
        pairs = tower_pairs(rows, others, weights)
        total = total + pair_contrast(*pairs, weights, coefficients=coefficients, form="outside", backend=backend).total
    return total


def _by_rows(
    anchors: Tensor,
    candidates: Tensor,
    problem: PairContrastProblem,
    weights: Tensor,
    settings: Settings,
    want: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """A sweep for the log-sum-exps of the candidates, and one for those of the anchors and all gradients."""
    n, m = len(anchors), len(candidates)
    mask = torch.zeros_like(weights).masked_fill_(weights == 0, -torch.inf)
    place = torch.arange(n, device=weights.device)
    scale = problem.coefficients[0].detach()
    back = class_lse(candidates[:n], anchors, place, scale=scale, bias=mask, backend=settings[0])
    columns = weights.new_full((m,), torch.inf), weights.new_zeros(m)
    columns[0][:n], columns[1][:n] = back.lse.masked_fill(weights == 0, torch.inf), weights
    # The positives are pulled from either side, the others of a row from one: (2w − w) on shares, −2w on positives.
    upstream = (2 * weights, -weights)
    result = checked_sweep((anchors, candidates), upstream, replace(problem, columns=columns), settings, want)
    apart = (back.lse - back.target).masked_fill(weights == 0, 0)
    return (weights * (result.positive + apart)).sum(), *gradients_of(result)


class BothWays(torch.autograd.Function):
    """The value with all gradients: by tiles on the CPU, else by rows."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor | None, ...]:
        """Arguments: those of :func:`contrast_both_ways`, and of which a gradient is wanted. Total and gradients."""
        anchors, candidates, coefficients, weights, backend, want = arguments
        dtype = pair_dtype(anchors, candidates)
        operand = operand_dtype(dtype, anchors, candidates, autocast=True)
        check_finite_embeddings(anchors)
        _, labels, _, candidate_labels = tower_pairs(anchors, candidates, weights)
        problem = PairContrastProblem(PairSets.of(labels, candidate_labels), coefficients, "outside")
        chosen = choose(BACKENDS, backend, anchors.device, dtype)
        # Candidates without an anchor have no loss.
        of_candidates = weights.new_zeros(len(candidates))
        of_candidates[: len(weights)] = weights
        both = weights, of_candidates
        new = [factor.new_zeros((4, len(factor))) for factor in both]
        buffers = [
            PairBuffers((factor, factor.new_zeros(())), sums[0], sums[1], counts=None, rows=None, moments=sums[2:])
            for factor, sums in zip(both, new, strict=True)
        ]
        sides = contrast_by_tiles((anchors, candidates), problem, buffers, chosen, operand, want)
        if not sides:
            return _by_rows(anchors, candidates, problem, weights, (backend, operand), want)
        check_finite_candidates(sides[1].inverse_norm)
        total = sum((factor * sums[0]).sum() for factor, sums in zip(both, new, strict=True))
        dcoefficients = torch.cat(new, 1)[2:].sum(1)
        return total, sides[0].dX, sides[1].dX, dcoefficients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep the inputs, and the gradients until they are taken."""
        ctx.save_for_backward(*inputs[:4])
        ctx.backend, ctx.want = inputs[4:]
        ctx.gradients = output[1:]
        ctx.mark_non_differentiable(*(gradient for gradient in output[1:] if gradient is not None))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dtotal: Any, *_: None) -> tuple[Tensor | None, ...]:
        """Scale the gradients that are there, or sweep again; for second derivatives sweep from each side."""
        if dtotal is None:
            return (None,) * 6
        anchors, candidates, coefficients, weights = ctx.saved_tensors
        matrices = anchors, candidates, coefficients
        (gradients, ctx.gradients), twice = (ctx.gradients, None), torch.is_grad_enabled()
        if twice:
            with torch.enable_grad():
                leaves = [matrix for matrix, want in zip(matrices, ctx.want, strict=True) if want]
                total = _in_two_sweeps(*matrices, weights, ctx.backend)
                found = iter(torch.autograd.grad(total, leaves, dtotal, create_graph=True))
            scaled = [next(found) if want else None for want in ctx.want]
        else:
            if gradients is None:
                gradients = BothWays.forward(*ctx.saved_tensors, ctx.backend, ctx.want)[1:]
            pairs = zip(gradients, matrices, ctx.want, strict=True)
            scaled = [(gradient * dtotal).to(matrix.dtype) if want else None for gradient, matrix, want in pairs]
        return (*scaled, None, None, None)
