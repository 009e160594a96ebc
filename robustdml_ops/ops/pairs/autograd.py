"""The sums of pairs as an autograd function, the op ``robustdml_ops::pair_sweep``, and second derivatives."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

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
from robustdml_ops.engine.op_arguments import SCHEMA, flatten, unflatten
from robustdml_ops.engine.rows.backends import scale_gradients
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Derivative, Results, second_derivatives
from robustdml_ops.engine.similarity_chunks import cache_rows
from robustdml_ops.engine.validation import (
    check_finite_candidates,
    check_finite_embeddings,
    check_same_device,
    check_tensor,
    largest_weight,
)
from robustdml_ops.ops.pairs.backends import (
    Arithmetic,
    ContrastOptions,
    DistanceLimits,
    PairProblem,
    contrast_terms,
    distances,
    hinge_sums,
    informative,
    mean_weight,
    near_distances,
)
from robustdml_ops.ops.pairs.sets import members
from robustdml_ops.ops.pairs.sweep import BACKENDS, PairResult, both_ways, pair_sweep

# backend, type of the products' operands
Settings: TypeAlias = tuple[str, torch.dtype]
# total, positive and negative sums, counts (2, n) or of losses above 0 (), dX, dcandidates, dcoefficients; some None
Outputs: TypeAlias = tuple[Tensor | None, ...]


class PairSweep(SweepFunction):
    """One sweep. Without scales it gives both sums of each anchor, with scales their weighted sum and its gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Outputs:
        """Matrices, two scales, coefficients, settings, wanted gradients, and the problem; in graphs its parts."""
        tensors, (backend, operand, want), parts = arguments[:5], arguments[5:8], arguments[8:]
        if has_no_values(tensors[0]):
            return _op(tensors, backend, operand, want, parts)
        problem = _problem_of(parts, tensors[4])
        result = _checked_sweep(tensors, problem, (backend, operand), want)
        if tensors[2] is None:
            return (None, result.positive, result.negative, result.counts, None, None, None)
        return (_weighted_sum(result, tensors), None, None, _number_above(result, problem), *_gradients_of(result))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        *tensors, backend, operand, ctx.want = inputs[:8]
        ctx.settings = (backend, operand)
        ctx.problem, constants = (inputs[8:], ()) if len(inputs) == 9 else (inputs[8:10], inputs[10:])
        kept_gradients.save(ctx, (*tensors, *constants), output[4:])
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
    """The problem as it is, or of names, numbers and tensors."""
    if len(parts) == 1:
        return parts[0]  # type: ignore[no-any-return]
    names, numbers, *tensors = parts
    return replace(unflatten(names, numbers, tensors), coefficients=coefficients)  # type: ignore[no-any-return]


def _op(tensors: Sequence[Any], *rest: Any) -> Outputs:
    """The registered op."""
    *settings, (names, numbers, *constants) = rest
    return pair_sweep_op(*tensors, *settings, names, numbers, constants)  # type: ignore[no-any-return]


def _number_above(result: PairResult, problem: PairProblem) -> Tensor | None:
    """How many anchors of a contrast have a loss above 0, ()."""
    return None if problem.coefficients is None else (result.positive > 0).sum()


def _gradients_of(result: PairResult) -> Results:
    """Gradients of anchors, candidates and coefficients (2,), each where it was made."""
    return result.danchors, result.dcandidates, result.dcoefficients


def _scaled(ctx: Any, dtotal: Tensor, needs: Sequence[bool]) -> Results:
    """The gradients of the weighted sum, which its sweep has made, times its upstream gradient."""
    # They are given away and scaled in place, so a second backward of the same graph sweeps again.
    gradients = kept_gradients.take(ctx)
    if gradients is None:
        saved = kept_gradients.saved(ctx)
        problem = _problem_of((*ctx.problem, *saved[5:]), saved[4])
        gradients = _gradients_of(_checked_sweep(saved[:5], problem, ctx.settings, ctx.want))
    return _typed(scale_gradients(gradients, dtotal, BACKENDS, ctx.settings[0], ctx.types), ctx.types, needs)


def _weighted_sum(result: PairResult, tensors: Sequence[Any]) -> Tensor:
    """Σ_i of both sums times their scales, (), summed in double."""
    total: Tensor = (tensors[2] * result.positive).sum(dtype=torch.float64)
    total += (tensors[3] * result.negative).sum(dtype=torch.float64)
    return total.to(result.positive.dtype)


def pair_dtype(embeddings: Tensor, candidates: Tensor | None) -> torch.dtype:
    """Compute type of the pairs; raises where these are no tensors."""
    candidates = embeddings if candidates is None else candidates
    for name, matrix in (("embeddings", embeddings), ("candidates", candidates)):
        if not isinstance(matrix, Tensor):
            check_tensor(name, matrix)
    return compute_dtype(embeddings, candidates)


def _checked_sweep(
    tensors: Sequence[Any], problem: PairProblem, settings: Settings, want: Sequence[bool]
) -> PairResult:
    """One sweep over detached matrices, their values checked, with upstream gradients or None."""
    X, candidates, *upstream = tensors[:4]
    check_finite_embeddings(X)
    dtype, (backend, operand) = pair_dtype(X, candidates), settings
    chosen = choose(BACKENDS, backend, X.device, dtype)
    if X.is_cuda and chosen.has_lanes and not problem.sets.are_plain:
        # The kernels of CUDA C++, which are there for devices without Triton, compare one label of each sample.
        if backend == "native":
            raise RuntimeError("backend='native' has no ids and several labels on a GPU: take backend='auto'")
        chosen = BACKENDS["eager"]
    arithmetic = Arithmetic(chosen, dtype, operand)
    factors = None if upstream[0] is None else (upstream[0], upstream[1])
    if problem.options == ContrastOptions("both") and factors is not None:
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
    parts = (*problem, *tensors[5:])
    gradients: Sequence[Tensor | None]
    if has_no_values(tensors[0]):
        gradients = _op(tensors[:5], *settings, list(needs), parts)[4:]
    else:
        gradients = _gradients_of(_checked_sweep(tensors[:5], _problem_of(parts, tensors[4]), settings, needs))
    return _typed(gradients, _types(tensors), needs)


def _second(problem: Sequence[Any], settings: Settings, *tensors: Any) -> Results:
    """Second derivatives, see :func:`_second_derivative`."""
    given, constants, vectors = tensors[:5], tensors[5:-3], tensors[-3:]
    whole, terms = _problem_of((*problem, *constants), given[4]), None
    if whole.options.average:
        # The numbers of terms above 0 are constants.
        terms = _checked_sweep((*given[:2], None, None), whole, settings, (False, False)).terms
    return _second_derivative(whole, terms, *given, *vectors)


@registered_op(
    "robustdml_ops::pair_sweep",
    "(Tensor embeddings, Tensor? candidates, Tensor? upstream_positive, Tensor? upstream_negative, "
    f"Tensor? coefficients, str backend, ScalarType operand, bool[] want, {SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def pair_sweep_op(*arguments: Any) -> Any:
    """One sweep; the gradients are in the compute type. Unwanted results are empty."""
    tensors, (backend, operand, want, names, numbers, constants) = arguments[:5], arguments[5:]
    problem = _problem_of((names, numbers, *constants), tensors[4])
    result = _checked_sweep(tensors, problem, (backend, operand), want)
    empty = result.positive.new_empty
    total = empty(0) if tensors[2] is None else _weighted_sum(result, tensors)
    counts = _number_above(result, problem) if result.counts is None else result.counts
    counts = problem.sets.labels.new_empty(0) if counts is None else counts
    gradients = (empty(0) if value is None else value for value in _gradients_of(result))
    return (total, result.positive, result.negative, counts, *gradients)


@pair_sweep_op.register_fake
def _(embeddings: Tensor, candidates: Tensor | None, upstream_positive: Tensor | None, *rest: Any) -> Any:
    coefficients, want, names = rest[1], rest[4], rest[5]
    n, new = embeddings.shape[0], embeddings.new_empty(0, dtype=pair_dtype(embeddings, candidates)).new_empty
    counts = (2, n) if "HingeOptions" in names else 0 if coefficients is None else ()
    return (
        new(0 if upstream_positive is None else ()),
        new(n),
        new(n),
        embeddings.new_empty(counts, dtype=torch.int64),
        new(embeddings.shape if want[0] else 0),
        new(candidates.shape if want[1] and candidates is not None else 0),
        new(2 if coefficients is not None and any(want) else 0),
    )


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
) -> tuple[Tensor, ...]:
    """The sum of all times ``scales`` (), in one sweep; without scales None, both sums (n,), counts (2, n)."""
    coefficients, graded = problem.coefficients, scales is not None and torch.is_grad_enabled()
    want = [graded and t is not None and t.requires_grad for t in (embeddings, candidates, coefficients)]
    parts: tuple[Any, ...] = (problem,)
    if not in_eager_mode(embeddings):
        if problem.hardest is not None:
            raise RuntimeError("torch.func, and graphs without values, see no pairs: observe a step in eager mode")
        names, numbers, constants = flatten(replace(problem, coefficients=None))
        parts = names, numbers, *constants
    both = (embeddings,) if candidates is None else (embeddings, candidates)
    operand = operand_dtype(pair_dtype(embeddings, candidates), *both, autocast=True)
    tensors = (embeddings, candidates, *(scales or (None, None)), coefficients)
    results: tuple[Tensor, ...] = apply_function(PairSweep, *tensors, backend or "auto", operand, want, *parts)
    return results[:4]


def _second_derivative(problem: PairProblem, terms: Tensor | None, *tensors: Any) -> Results:
    """Derivatives of ⟨gradients, vectors⟩ by matrices and upstream; ``terms`` (2,): divisors of both sides, or None."""
    # Tensors: both matrices, upstream gradients, coefficients; vectors of both matrices and coefficients; some None.
    X, candidates, *upstream, coefficients, vX, v_candidates, v_coefficients = tensors
    if problem.options == ContrastOptions("both"):
        there = replace(problem, options=ContrastOptions("outside"))
        back = replace(there, sets=problem.sets.turned())
        of_candidates = torch.cat([upstream[0], upstream[0].new_zeros(len(candidates) - len(X))])
        turned = (candidates, X, of_candidates, upstream[1], coefficients, v_candidates, vX, v_coefficients)
        of_rows: Any = _second_derivative(there, None, *tensors)
        of_columns: Any = _second_derivative(back, None, *turned)
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
    sums: Any = _SUMS[problem.options.kind](problem, S, sides, anchors, candidates, coefficients)
    value: Tensor = (upstream_positive * sums[0] + upstream_negative * sums[1]).sum()
    return value


def _distances(S: Tensor, anchors: Tensor, candidates: Tensor, members: Tensor) -> Tensor:
    """As :func:`~robustdml_ops.ops.pairs.backends.distances`; constants up to the resolution."""
    near, resolution = DistanceLimits.of(S)
    values = distances(S.detach(), anchors.detach(), candidates.detach(), members, near)
    far = values >= near
    result = torch.where(far, (2 - 2 * S).masked_fill(~far, 1).sqrt(), values)
    i, j = ((values < near) & (values > resolution) & members).nonzero(as_tuple=True)
    exact = near_distances(anchors[i].double(), candidates[j].double())
    return result.index_put((i, j), exact.to(result.dtype))


def _log_sum_exps(problem: PairProblem, S: Tensor, sides: tuple[Tensor, Tensor], *_: Any) -> tuple[Tensor, ...]:
    of: Any = problem.options
    if of.epsilon is not None:
        sides = informative(S.detach(), *sides, of.epsilon)
    sums = []
    exponents = of.alpha * (of.base - S), of.beta * (S - of.base)
    for exponent, side in zip(exponents, sides, strict=True):
        lse = torch.logsumexp(torch.nn.functional.pad(exponent.masked_fill(~side, -torch.inf), (1, 0)), dim=1)
        weights = problem.candidate_weights
        sums.append(lse if weights is None else lse * mean_weight(side, weights))
    return tuple(sums)


def _hinges(problem: PairProblem, S: Tensor, sides: tuple[Tensor, Tensor], *rows: Tensor) -> tuple[Tensor, ...]:
    t = -_distances(S, rows[0], rows[1], sides[0] | sides[1]) if problem.options.euclidean else S
    return hinge_sums(t, *sides, problem.options)[:2]


def _contrasts(problem: Any, S: Tensor, sides: tuple[Tensor, Tensor], *tensors: Tensor) -> tuple[Tensor, ...]:
    scale, bias = tensors[2]
    return contrast_terms(scale * S + bias, *sides, problem.options.form)[:2]


# Both sums of the anchors of a chunk, twice differentiable.
_SUMS: dict[str, Any] = {"pair_lse": _log_sum_exps, "pair_hinge": _hinges, "pair_contrast": _contrasts}
