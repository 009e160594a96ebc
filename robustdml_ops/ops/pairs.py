"""What the ops on pairs share: checks, and the way through autograd."""

import math
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.dispatch import choose
from robustdml_ops.engine.pair_sweep import PairResult, pair_sweep
from robustdml_ops.engine.pairs import PairProblem, PairSets
from robustdml_ops.engine.similarities import compute_dtype
from robustdml_ops.ops.validation import (
    check_finite_candidates,
    check_finite_embeddings,
    check_labels,
    check_matrix,
    check_same_device,
)


def check_pairs(
    embeddings: Tensor, labels: Tensor, candidates: Tensor | None, candidate_labels: Tensor | None
) -> PairSets:
    """What shapes and types tell; values are checked in :func:`run_pairs`."""
    check_matrix("embeddings", embeddings)
    labels = check_labels(labels, embeddings)
    if candidates is None:
        if candidate_labels is not None:
            raise ValueError("candidate_labels without candidates: give both, or neither, for the batch itself")
        return PairSets.of(labels, None)
    check_matrix("candidates", candidates, columns=embeddings.shape[1])
    check_same_device(embeddings=embeddings, candidates=candidates)
    return PairSets.of(labels, check_labels(candidate_labels, candidates, "candidate_labels", "candidates"))


def check_finite_numbers(**numbers: float) -> None:
    """Settings that are numbers and not NaN or inf."""
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")


def pair_dtype(embeddings: Tensor, candidates: Tensor | None) -> torch.dtype:
    """Compute type of the pairs."""
    return compute_dtype(embeddings, embeddings if candidates is None else candidates)


def run_pairs(
    embeddings: Tensor,
    candidates: Tensor | None,
    problem: PairProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: str | None,
    want: tuple[bool, bool] = (False, False),
) -> PairResult:
    """One sweep over detached inputs, their values checked."""
    check_finite_embeddings(embeddings)
    dtype = pair_dtype(embeddings, candidates)
    epilogue = choose(backend, embeddings.device, dtype)
    result = pair_sweep(embeddings, candidates, problem, upstream, epilogue, dtype, want)
    if candidates is not None and result.candidate_scale is not None:
        check_finite_candidates(result.candidate_scale)
    return result


def pair_sums(
    embeddings: Tensor, candidates: Tensor | None, problem: PairProblem, backend: str | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Positive and negative sums (n,) each, and counts (2, n) of hinges; differentiable."""
    if torch.compiler.is_compiling():
        from robustdml_ops.ops.pair_library import flatten, pair_sums_op

        compiled: tuple[Tensor, Tensor, Tensor] = pair_sums_op(
            embeddings, candidates, *flatten(problem), backend or "auto"
        )
        return compiled
    sums: tuple[Tensor, Tensor, Tensor | None] = Pairs.apply(  # type: ignore[no-untyped-call]
        embeddings, candidates, problem, backend
    )
    return sums


def pair_sum(
    embeddings: Tensor,
    candidates: Tensor | None,
    problem: PairProblem,
    scales: tuple[Tensor, Tensor],
    backend: str | None,
) -> Tensor:
    """Sums of :func:`pair_sums` times checked scales, summed, in one sweep; differentiable."""
    want = (embeddings.requires_grad, candidates is not None and candidates.requires_grad)
    if torch.compiler.is_compiling():
        from robustdml_ops.ops.pair_library import flatten, pair_sum_op

        compiled: Tensor = pair_sum_op(
            embeddings, candidates, *flatten(problem), backend or "auto", *scales, list(want)
        )[0]
        return compiled
    if not torch.is_grad_enabled():
        want = (False, False)
    total: Tensor = PairSum.apply(  # type: ignore[no-untyped-call]
        embeddings, candidates, problem, scales, backend, want
    )
    return total


class Pairs(torch.autograd.Function):
    """Sums of every anchor, for any upstream gradient: forward is one sweep, backward another."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of (embeddings, candidates or None, problem, backend): positive, negative (n,) and counts (2, n) or None."""
        embeddings, candidates, problem, backend = arguments
        result = run_pairs(embeddings, candidates, problem, None, backend)
        ctx.save_for_backward(embeddings, candidates)
        ctx.settings = (problem, backend)
        if result.counts is not None:
            ctx.mark_non_differentiable(result.counts)
        return result.positive, result.negative, result.counts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, positive: Tensor, negative: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        """Sweep again, with the upstream gradients of the two sums."""
        embeddings, candidates = ctx.saved_tensors
        problem, backend = ctx.settings
        needs = ctx.needs_input_grad
        result = run_pairs(embeddings, candidates, problem, (positive, negative), backend, (needs[0], needs[1]))
        return (*_like(result, embeddings, candidates), None, None)


class PairSum(torch.autograd.Function):
    """Σ_i of both sums times scales that are known beforehand: value and gradients take one sweep."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        """Of (embeddings, candidates or None, problem, scales, backend, want): the sum, ()."""
        embeddings, candidates, *settings = arguments
        ctx.save_for_backward(embeddings, candidates)
        ctx.settings = settings
        result = run_pairs(embeddings, candidates, *settings)
        ctx.result = result if any(settings[-1]) else None
        return weighted_sum(result, settings[1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that the sweep of forward made."""
        embeddings, candidates = ctx.saved_tensors
        # The gradients are given away and scaled in place, so a second backward of the same graph sweeps again.
        result, ctx.result = ctx.result, None
        if result is None:
            result = run_pairs(embeddings, candidates, *ctx.settings)
        for gradient in (result.danchors, result.dcandidates):
            if gradient is not None:
                gradient.mul_(upstream)
        return (*_like(result, embeddings, candidates), None, None, None, None)


def weighted_sum(result: PairResult, scales: tuple[Tensor, Tensor]) -> Tensor:
    """Σ_i of both sums times their scales, (), summed in double."""
    total = (scales[0] * result.positive).sum(dtype=torch.float64)
    total += (scales[1] * result.negative).sum(dtype=torch.float64)
    return total.to(result.positive.dtype)


def _like(result: PairResult, embeddings: Tensor, candidates: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Gradients in the types of their tensors. Only now: unscaled ones of a float16 model may lie below float16."""
    dX, dC = result.danchors, result.dcandidates
    return (
        None if dX is None else dX.to(embeddings.dtype),
        None if dC is None or candidates is None else dC.to(candidates.dtype),
    )


def check_scales(
    embeddings: Tensor, candidates: Tensor | None, positive_scale: Tensor, negative_scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The scales of a :class:`PairSum` in the compute type, each () or (n,)."""
    for name, scale in (("positive_scale", positive_scale), ("negative_scale", negative_scale)):
        if scale.shape not in ((), (len(embeddings),)):
            raise ValueError(f"{name} must have shape () or ({len(embeddings)},), got {tuple(scale.shape)}")
        if scale.requires_grad:
            raise ValueError(f"{name} is a constant of this op: pass {name}.detach()")
    check_same_device(embeddings=embeddings, positive_scale=positive_scale, negative_scale=negative_scale)
    dtype = pair_dtype(embeddings, candidates)
    return positive_scale.to(dtype), negative_scale.to(dtype)
