"""The ops on pairs as ``torch.library`` registers them, for ``torch.compile`` and ``torch.export``.

In eager mode nothing comes through here: the registry costs tens of microseconds a call.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.pairs import PairHingeProblem, PairLSEProblem, PairProblem, PairSets
from robustdml_ops.ops.pairs import pair_dtype, run_pairs, weighted_sum

Settings = tuple[Tensor, Tensor | None, Tensor | None, str, list[float]]


def flatten(problem: PairProblem) -> Settings:
    """``problem`` as the registered ops take it: tensors, a name and numbers."""
    sets = problem.sets
    candidate_labels = None if sets.itself else sets.candidate_labels
    if isinstance(problem, PairLSEProblem):
        mining = [] if problem.epsilon is None else [float(problem.epsilon)]
        numbers = [float(problem.alpha), float(problem.beta), float(problem.base), *mining]
        return sets.labels, candidate_labels, problem.candidate_weights, "lse", numbers
    margins = (problem.positive_margin, problem.negative_margin, problem.positive_offset, problem.negative_offset)
    return sets.labels, candidate_labels, None, "hinge", [*map(float, margins), float(problem.euclidean)]


def _problem(
    labels: Tensor, candidate_labels: Tensor | None, weights: Tensor | None, kind: str, numbers: Sequence[float]
) -> PairProblem:
    sets = PairSets.of(labels, candidate_labels)
    if kind == "lse":
        alpha, beta, base, *epsilon = numbers
        return PairLSEProblem(sets, alpha, beta, base, epsilon[0] if epsilon else None, weights)
    m_positive, m_negative, positive_offset, negative_offset, euclidean = numbers
    return PairHingeProblem(sets, m_positive, m_negative, positive_offset, negative_offset, bool(euclidean))


def _or_empty(value: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0) if value is None else value


@torch.library.custom_op("robustdml_ops::pair_sweep", mutates_args=())
def pair_sweep_op(
    embeddings: Tensor,
    candidates: Tensor | None,
    upstream_positive: Tensor,
    upstream_negative: Tensor,
    labels: Tensor,
    candidate_labels: Tensor | None,
    candidate_weights: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    backend: str,
    want: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    """Gradients of embeddings and candidates in the compute type. Not differentiable: the two ops below are."""
    problem = _problem(labels, candidate_labels, candidate_weights, kind, numbers)
    upstream = (upstream_positive, upstream_negative)
    result = run_pairs(embeddings, candidates, problem, upstream, backend, (want[0], want[1]))
    return _or_empty(result.danchors, result.positive), _or_empty(result.dcandidates, result.positive)


def _fake_gradients(embeddings: Tensor, candidates: Tensor | None, want: Sequence[bool]) -> tuple[Tensor, Tensor]:
    new = embeddings.new_empty(0, dtype=pair_dtype(embeddings, candidates)).new_empty
    return (
        new(embeddings.shape) if want[0] else new(0),
        new(candidates.shape) if want[1] and candidates is not None else new(0),
    )


@pair_sweep_op.register_fake
def _(embeddings: Tensor, candidates: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    return _fake_gradients(embeddings, candidates, rest[-1])


_NO_GRADIENT = (None,) * 6  # labels, candidate_labels, candidate_weights, kind, numbers, backend


@torch.library.custom_op("robustdml_ops::pair_sums", mutates_args=())
def pair_sums_op(
    embeddings: Tensor,
    candidates: Tensor | None,
    labels: Tensor,
    candidate_labels: Tensor | None,
    candidate_weights: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """See :class:`robustdml_ops.ops.pairs.Pairs`; counts are empty where the problem has none."""
    problem = _problem(labels, candidate_labels, candidate_weights, kind, numbers)
    result = run_pairs(embeddings, candidates, problem, None, backend)
    return result.positive, result.negative, _or_empty(result.counts, labels)


@pair_sums_op.register_fake
def _(
    embeddings: Tensor,
    candidates: Tensor | None,
    labels: Tensor,
    candidate_labels: Tensor | None,
    candidate_weights: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    n, dtype = embeddings.shape[0], pair_dtype(embeddings, candidates)
    new = embeddings.new_empty
    return new(n, dtype=dtype), new(n, dtype=dtype), labels.new_empty((2, n) if kind == "hinge" else 0)


def _sums_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _sums_backward(ctx: Any, positive: Tensor, negative: Tensor, _: Any) -> tuple[Any, ...]:
    embeddings, candidates, *sets = ctx.saved_tensors
    needs = ctx.needs_input_grad
    upstream = (positive.contiguous(), negative.contiguous())
    dX, dC = pair_sweep_op(embeddings, candidates, *upstream, *sets, *ctx.settings, [needs[0], needs[1]])
    return (*_typed(dX, dC, embeddings, candidates, needs), *_NO_GRADIENT)


pair_sums_op.register_autograd(_sums_backward, setup_context=_sums_context)


@torch.library.custom_op("robustdml_ops::pair_sum", mutates_args=())
def pair_sum_op(
    embeddings: Tensor,
    candidates: Tensor | None,
    labels: Tensor,
    candidate_labels: Tensor | None,
    candidate_weights: Tensor | None,
    kind: str,
    numbers: Sequence[float],
    backend: str,
    positive_scale: Tensor,
    negative_scale: Tensor,
    want: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """See :class:`robustdml_ops.ops.pairs.PairSum`; also returns both gradients, in the compute type."""
    problem = _problem(labels, candidate_labels, candidate_weights, kind, numbers)
    scales = (positive_scale, negative_scale)
    result = run_pairs(embeddings, candidates, problem, scales, backend, (want[0], want[1]))
    gradients = (_or_empty(gradient, result.positive) for gradient in (result.danchors, result.dcandidates))
    return (weighted_sum(result, scales), *gradients)  # type: ignore[return-value]


@pair_sum_op.register_fake
def _(embeddings: Tensor, candidates: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    total = embeddings.new_empty((), dtype=pair_dtype(embeddings, candidates))
    return (total, *_fake_gradients(embeddings, candidates, rest[-1]))


def _sum_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], *inputs[:2])
    ctx.set_materialize_grads(False)


def _sum_backward(ctx: Any, upstream: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    dX, dC, embeddings, candidates = ctx.saved_tensors
    scaled = (dX * upstream, dC * upstream)
    return (*_typed(*scaled, embeddings, candidates, ctx.needs_input_grad), *_NO_GRADIENT, None, None, None)


pair_sum_op.register_autograd(_sum_backward, setup_context=_sum_context)


def _typed(
    dX: Tensor, dC: Tensor, embeddings: Tensor, candidates: Tensor | None, needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    return (
        dX.to(embeddings.dtype) if needs[0] else None,
        dC.to(candidates.dtype) if needs[1] and candidates is not None else None,
    )
