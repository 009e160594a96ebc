"""The sums of pairs as an autograd function, and the op ``robustdml_ops::pair_sweep`` of compiled graphs."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import (
    SweepFunction,
    apply_function,
    choose,
    compute_dtype,
    has_no_values,
    in_eager_mode,
    operand_dtype,
    refuse_vmap,
    registered_op,
)
from robustdml_ops.engine import kept_gradients
from robustdml_ops.engine.labels import check_labels
from robustdml_ops.engine.rows.backends import scale_gradients
from robustdml_ops.engine.second_derivatives import Derivative, Results
from robustdml_ops.engine.validation import (
    check_finite_candidates,
    check_finite_embeddings,
    check_matrix,
    check_same_device,
    check_tensor,
    largest_weight,
)
from robustdml_ops.ops.pairs.eager import second_derivative
from robustdml_ops.ops.pairs.problem import (
    Arithmetic,
    PairContrastProblem,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
    PairSets,
)
from robustdml_ops.ops.pairs.sweep import BACKENDS, PairResult, both_ways, pair_sweep

# backend, type of the products' operands
Settings: TypeAlias = tuple[str, torch.dtype]
# total, positive and negative sums, counts (2, n) or of losses above 0 (), dX, dcandidates, dcoefficients; some None
Outputs: TypeAlias = tuple[Tensor | None, ...]


class PairConstants(NamedTuple):
    """A problem as arguments of a registered op: tensors, a name and numbers."""

    labels: Tensor
    candidate_labels: Tensor | None
    candidate_weights: Tensor | None
    kind: str  # "lse", "hinge" or the form of a contrast, and " first" where the first candidates are the anchors
    numbers: list[float]

    @classmethod
    def of(cls, problem: PairProblem) -> "PairConstants":
        """The arguments of ``problem``."""
        sets, (weights, kind, numbers) = problem.sets, problem.constants
        candidate_labels, first = (None, "") if sets.alone else (sets.candidate_labels, " first" * sets.itself)
        return cls(sets.labels, candidate_labels, weights, kind + first, [float(number) for number in numbers])

    def problem(self, coefficients: Tensor | None) -> PairProblem:
        """The problem of these arguments."""
        sets = PairSets.of(self.labels, self.candidate_labels, self.kind.endswith(" first"))
        if coefficients is not None:
            return PairContrastProblem(sets, coefficients, self.kind.split()[0])
        if self.kind.startswith("lse"):
            alpha, beta, base, *epsilon = self.numbers
            return PairLSEProblem(sets, alpha, beta, base, epsilon[0] if epsilon else None, self.candidate_weights)
        m_positive, m_negative, positive_offset, negative_offset, *flags = self.numbers
        return PairHingeProblem(sets, m_positive, m_negative, positive_offset, negative_offset, *map(bool, flags))


class PairSweep(SweepFunction):
    """One sweep. Without scales it gives both sums of each anchor, with scales their weighted sum and its gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Outputs:
        """Matrices, two scales, coefficients, settings, wanted gradients, and the problem; in graphs its parts."""
        tensors, (backend, operand, want), parts = arguments[:5], arguments[5:8], arguments[8:]
        if has_no_values(tensors[0]):
            return pair_sweep_op(*tensors, *parts, backend, operand, want)  # type: ignore[no-any-return]
        problem = _problem_of(parts, tensors[4])
        result = _checked_sweep(tensors, problem, (backend, operand), want)
        if tensors[2] is None:
            return (None, result.positive, result.negative, result.counts, None, None, None)
        return (_weighted_sum(result, tensors), None, None, _number_above(result, problem), *_gradients_of(result))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        *tensors, backend, operand, ctx.want = inputs[:8]
        ctx.settings = (backend, operand)
        labels, ctx.problem = inputs[8:-2] if len(inputs) > 9 else (), inputs[-2:] if len(inputs) > 9 else inputs[8:]
        kept_gradients.save(ctx, (*tensors, *labels), output[4:])
        ctx.weighted, ctx.types = tensors[2] is not None, _types(tensors)
        ctx.mark_non_differentiable(*(tensor for tensor in output[3:] if tensor is not None))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, dtotal: Any, dpositive: Tensor | None, dnegative: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        """Scale the gradients that are there already, or sweep again with the upstream gradients."""
        needs = (*ctx.needs_input_grad[:2], ctx.needs_input_grad[4])
        nothing = (None,) * (len(ctx.needs_input_grad) - 5)
        # A compiled graph has zeros instead of None: only the scales show which results the sweep gave.
        given: Any = dtotal if ctx.weighted else dnegative if dpositive is None else dpositive
        if given is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_vmap(given)
        differentiable = torch.is_grad_enabled() and not has_no_values(given)
        if ctx.weighted and not differentiable:
            dX, dcandidates, dcoefficients = _scaled(ctx, dtotal, needs)
            return (dX, dcandidates, None, None, dcoefficients, *nothing)
        X, candidates, *scales, coefficients = (saved := kept_gradients.saved(ctx))[:5]
        upstream = [scale * dtotal for scale in scales] if ctx.weighted else (dpositive, dnegative)
        dtype = pair_dtype(X, candidates)
        factors = (X.new_zeros((), dtype=dtype) if factor is None else factor.contiguous() for factor in upstream)
        tensors = (X, candidates, *factors, coefficients, *saved[5:])
        first = partial(_first, ctx.problem, ctx.settings, needs)
        if differentiable:
            second = partial(_second, ctx.problem, ctx.settings)
            results = Derivative.apply(first, second, 2, *tensors)  # type: ignore[no-untyped-call]
        else:
            results = first(*tensors)
        return (*results[:2], None, None, results[2], *nothing)


def _problem_of(parts: Sequence[Any], coefficients: Tensor | None) -> PairProblem:
    """The problem as it is, or put together of its parts."""
    problem: PairProblem = parts[0] if len(parts) == 1 else PairConstants._make(parts).problem(coefficients)
    return problem


def _number_above(result: PairResult, problem: PairProblem) -> Tensor | None:
    """How many anchors of a contrast have a loss above 0, ()."""
    return (result.positive > 0).sum() if problem.has_coefficients else None


def _gradients_of(result: PairResult) -> Results:
    """Gradients of anchors, candidates and coefficients (2,), each where it was made."""
    return result.danchors, result.dcandidates, result.dcoefficients


def _scaled(ctx: Any, dtotal: Tensor, needs: Sequence[bool]) -> Results:
    """The gradients of the weighted sum, which its sweep has made, times its upstream gradient."""
    # They are given away and scaled in place, so a second backward of the same graph sweeps again.
    gradients = kept_gradients.take(ctx)
    if gradients is None:
        saved = kept_gradients.saved(ctx)
        problem = _problem_of((*saved[5:], *ctx.problem), saved[4])
        gradients = _gradients_of(_checked_sweep(saved[:5], problem, ctx.settings, ctx.want))
    return _typed(scale_gradients(gradients, dtotal, BACKENDS, ctx.settings[0], ctx.types), ctx.types, needs)


def _weighted_sum(result: PairResult, tensors: Sequence[Any]) -> Tensor:
    """Σ_i of both sums times their scales, (), summed in double."""
    total: Tensor = (tensors[2] * result.positive).sum(dtype=torch.float64)
    total += (tensors[3] * result.negative).sum(dtype=torch.float64)
    return total.to(result.positive.dtype)


def pair_dtype(embeddings: Tensor, candidates: Tensor | None) -> torch.dtype:
    """Compute type of the pairs."""
    return compute_dtype(embeddings, embeddings if candidates is None else candidates)


def _checked_sweep(
    tensors: Sequence[Any], problem: PairProblem, settings: Settings, want: Sequence[bool]
) -> PairResult:
    """One sweep over detached matrices, their values checked, with upstream gradients or None."""
    X, candidates, *upstream = tensors[:4]
    check_finite_embeddings(X)
    dtype, (backend, operand) = pair_dtype(X, candidates), settings
    arithmetic = Arithmetic(choose(BACKENDS, backend, X.device, dtype), dtype, operand)
    factors = None if upstream[0] is None else (upstream[0], upstream[1])
    if isinstance(problem, PairContrastProblem) and problem.form == "both" and factors is not None:
        result = both_ways(X, candidates, problem, factors, backend, arithmetic, tuple(want))
    else:
        result = pair_sweep(X, candidates, problem, factors, arithmetic, tuple(want))
    if candidates is not None and result.candidate_scale is not None:
        check_finite_candidates(result.candidate_scale)
    return result


def _types(tensors: Sequence[Any]) -> list[torch.dtype | None]:
    """Types of the gradients: of both matrices and of the coefficients."""
    return [None if tensor is None else tensor.dtype for tensor in (*tensors[:2], tensors[4])]


def _typed(gradients: Sequence[Tensor | None], types: Sequence[Any], needs: Sequence[bool]) -> Results:
    """Gradients in the types of their tensors. Only now: unscaled ones of a float16 model may lie below float16."""
    return tuple(
        gradient.to(dtype) if need and gradient is not None and dtype is not None else None
        for gradient, dtype, need in zip(gradients, types, needs, strict=True)
    )


def _first(problem: Sequence[Any], settings: Settings, needs: Sequence[bool], *tensors: Any) -> Results:
    """Gradients of Σ_a upstream_a · sum_a over both sums: one sweep."""
    parts = (*tensors[5:], *problem)
    gradients: Sequence[Tensor | None]
    if has_no_values(tensors[0]):
        gradients = pair_sweep_op(*tensors[:5], *parts, *settings, list(needs))[4:]
    else:
        gradients = _gradients_of(_checked_sweep(tensors[:5], _problem_of(parts, tensors[4]), settings, needs))
    return _typed(gradients, _types(tensors), needs)


def _second(problem: Sequence[Any], settings: Settings, *tensors: Any) -> Results:
    """Second derivatives, see :func:`second_derivative`."""
    given, labels, vectors = tensors[:5], tensors[5:-3], tensors[-3:]
    whole, terms = _problem_of((*labels, *problem), given[4]), None
    if whole.average:
        # The numbers of terms above 0 are constants.
        terms = _checked_sweep((*given[:2], None, None), whole, settings, (False, False)).terms
    return second_derivative(whole, terms, *given, *vectors)


@registered_op(
    "robustdml_ops::pair_sweep",
    "(Tensor embeddings, Tensor? candidates, Tensor? upstream_positive, Tensor? upstream_negative, "
    "Tensor? coefficients, Tensor labels, Tensor? candidate_labels, Tensor? candidate_weights, str kind, "
    "float[] numbers, str backend, ScalarType operand, bool[] want) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def pair_sweep_op(*arguments: Any) -> Any:
    """One sweep; the gradients are in the compute type. Unwanted results are empty."""
    tensors, (backend, operand, want) = arguments[:5], arguments[10:]
    problem = _problem_of(arguments[5:10], tensors[4])
    result = _checked_sweep(tensors, problem, (backend, operand), want)
    empty = result.positive.new_empty
    total = empty(0) if tensors[2] is None else _weighted_sum(result, tensors)
    counts = _number_above(result, problem) if result.counts is None else result.counts
    counts = problem.sets.labels.new_empty(0) if counts is None else counts
    gradients = (empty(0) if value is None else value for value in _gradients_of(result))
    return (total, result.positive, result.negative, counts, *gradients)


@pair_sweep_op.register_fake
def _(embeddings: Tensor, candidates: Tensor | None, upstream_positive: Tensor | None, *rest: Any) -> Any:
    coefficients, labels, kind, want = rest[1], rest[2], rest[5], rest[9]
    n, new = embeddings.shape[0], embeddings.new_empty(0, dtype=pair_dtype(embeddings, candidates)).new_empty
    return (
        new(0 if upstream_positive is None else ()),
        new(n),
        new(n),
        labels.new_empty((2, n) if kind.startswith("hinge") else 0 if coefficients is None else ()),
        new(embeddings.shape if want[0] else 0),
        new(candidates.shape if want[1] and candidates is not None else 0),
        new(2 if coefficients is not None and any(want) else 0),
    )


def check_pairs(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None,
    candidate_labels: Tensor | None,
    anchors_first: bool = False,
) -> PairSets:
    """The sets of checked arguments; values are checked in the sweep."""
    check_matrix("embeddings", embeddings)
    # Asked before labels of another type or device become new tensors.
    same = candidate_labels is labels
    labels = check_labels(labels, embeddings)
    if candidates is None:
        if candidate_labels is not None:
            raise ValueError("candidate_labels without candidates: give both, or neither, for the batch itself")
        if anchors_first:
            raise ValueError("anchors_first without candidates, which are the anchors then: leave it out")
        return PairSets.of(labels, None)
    check_matrix("candidates", candidates, columns=embeddings.shape[1])
    check_same_device(embeddings=embeddings, candidates=candidates)
    candidate_labels = check_labels(candidate_labels, candidates, "candidate_labels", "candidates")
    if anchors_first and len(candidates) < len(embeddings):
        raise ValueError(
            f"anchors_first says that the first candidates are the {len(embeddings)} anchors, and there are "
            f"{len(candidates)} candidates"
        )
    return PairSets.of(labels, None if same else candidate_labels, anchors_first)


def check_scales(
    embeddings: Tensor, candidates: Tensor | None, positive_scale: Tensor, negative_scale: Tensor
) -> tuple[Tensor, Tensor]:
    """The scales of a weighted sum in the compute type, each () or (n,)."""
    for name, scale in (("positive_scale", positive_scale), ("negative_scale", negative_scale)):
        check_tensor(name, scale)
        if scale.shape not in ((), (len(embeddings),)):
            raise ValueError(f"{name} must have shape () or ({len(embeddings)},), got {tuple(scale.shape)}")
        if scale.is_complex():
            raise ValueError(f"{name} must be real numbers, got {scale.dtype}: pass {name}.real")
        if scale.requires_grad:
            raise ValueError(f"{name} is a constant of this op: pass {name}.detach()")
    check_same_device(embeddings=embeddings, positive_scale=positive_scale, negative_scale=negative_scale)
    dtype = pair_dtype(embeddings, candidates)
    scales = positive_scale.to(dtype), negative_scale.to(dtype)
    check_weights(positive_scale=scales[0], negative_scale=scales[1])
    return scales


def check_weights(**weights: Tensor) -> None:
    """No weight that is NaN or makes sums of pairs overflow; on the CPU, as other values, and in eager mode."""
    for name, values in weights.items():
        if values.device.type != "cpu" or not in_eager_mode(values):
            return
        largest = largest_weight(values.dtype)
        bounds = (values, values) if values.dim() == 0 else values.aminmax() if len(values) else ()
        if not all(-largest <= float(bound) <= largest for bound in bounds):
            fits = values.abs() <= largest
            raise ValueError(
                f"{name} must be finite and at most {largest:.2g} in {values.dtype}, got {values[~fits][:3].tolist()}"
            )


def pair_sums(
    embeddings: Tensor,
    candidates: Tensor | None,
    problem: PairProblem,
    backend: str | None,
    scales: tuple[Tensor, Tensor] | None = None,
    coefficients: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The sum of all times ``scales`` (), in one sweep; without scales None, both sums (n,), counts (2, n)."""
    checked = (None, None) if scales is None else check_scales(embeddings, candidates, *scales)
    matrices = (embeddings, candidates, coefficients)
    graded = scales is not None and torch.is_grad_enabled()
    want = [graded and matrix is not None and matrix.requires_grad for matrix in matrices]
    parts = (problem,) if in_eager_mode(embeddings) else PairConstants.of(problem)
    both = (embeddings,) if candidates is None else (embeddings, candidates)
    operand = operand_dtype(pair_dtype(embeddings, candidates), *both, autocast=True)
    results: tuple[Tensor, ...] = apply_function(
        PairSweep, embeddings, candidates, *checked, coefficients, backend or "auto", operand, want, *parts
    )
    return results[:4]
