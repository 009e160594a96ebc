"""InfoNCE of two matrices whose rows belong together, from either side: 8·n·m·D flops where two sweeps take 12."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import in_eager_mode
from robustdml_ops.engine.autograd_functions import apply_function
from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.engine.precision import operand_dtype
from robustdml_ops.ops.classes import class_lse
from robustdml_ops.ops.pairs.autograd import checked_sweep, gradients_of, pair_dtype
from robustdml_ops.ops.pairs.contrast import pair_contrast_sum
from robustdml_ops.ops.pairs.problem import PairContrastProblem, PairSets


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


def places(weights: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Labels (n,) and (m,) by which candidate i is the positive of anchor i, and the others are negatives."""
    own = torch.arange(len(weights), device=weights.device).masked_fill(weights == 0, ABSENT)
    return own, torch.cat([own, own.new_full((m - len(own),), -1)])


def _in_two_sweeps(
    anchors: Tensor, candidates: Tensor, coefficients: Tensor, weights: Tensor, backend: str | None
) -> Tensor:
    """The same, by a sweep for each side."""
    own, others = places(weights, len(candidates))
    settings: dict[str, Any] = {"coefficients": coefficients, "form": "outside", "backend": backend}
    there = pair_contrast_sum(anchors, own, candidates, others, weights, **settings)
    back = pair_contrast_sum(candidates[: len(own)], own, anchors, own.clone(), weights, **settings)
    return there.total + back.total


class BothWays(torch.autograd.Function):
    """A sweep for the log-sum-exps of the candidates, and one for those of the anchors and all gradients."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor | None, ...]:
        """Arguments: those of :func:`contrast_both_ways`, and of which a gradient is wanted. Total and gradients."""
        anchors, candidates, coefficients, weights, backend, want = arguments
        n, m = len(anchors), len(candidates)
        own, others = places(weights, m)
        mask = torch.zeros_like(weights).masked_fill_(weights == 0, -torch.inf)
        place = torch.arange(n, device=own.device)
        back = class_lse(candidates[:n], anchors, place, scale=coefficients[0].detach(), bias=mask, backend=backend)
        columns = weights.new_full((m,), torch.inf), weights.new_zeros(m)
        columns[0][:n], columns[1][:n] = back.lse.masked_fill(weights == 0, torch.inf), weights
        problem = PairContrastProblem(PairSets.of(own, others), coefficients, "outside", columns)
        operand = operand_dtype(pair_dtype(anchors, candidates), anchors, candidates, autocast=True)
        # The positives are pulled from either side, the others of a row from one: (2w − w) on shares, −2w on positives.
        result = checked_sweep((anchors, candidates), (2 * weights, -weights), problem, (backend, operand), want)
        apart = (back.lse - back.target).masked_fill(weights == 0, 0)
        return (weights * (result.positive + apart)).sum(), *gradients_of(result)

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
