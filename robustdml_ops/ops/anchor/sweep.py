"""The anchor log-sum-exp as an autograd function, twice differentiable, and the sweep over the proxies below it."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import (
    SweepFunction,
    choose,
    compute_dtype,
    has_no_values,
    refuse_vmap,
    registered_op,
    without_autocast,
)
from robustdml_ops.engine import kept_gradients
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.op_arguments import SCHEMA, unflatten
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update
from robustdml_ops.engine.rows.backends import gradient_buffer, scale_gradients
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Derivative, Results, second_derivatives
from robustdml_ops.engine.similarity_chunks import (
    Similarities,
    Swept,
    cache_rows,
    count_selected,
    gradients_without_samples,
    slices_of,
)
from robustdml_ops.engine.validation import check_finite_embeddings, check_finite_proxies
from robustdml_ops.ops.anchor.backends import (
    AnchorBackend,
    AnchorOptions,
    AnchorProblem,
    AnchorSums,
    EagerAnchor,
    NativeAnchor,
    SweepResult,
    TritonAnchor,
    Wanted,
    membership,
)

BACKENDS: dict[str, AnchorBackend] = {"native": NativeAnchor(), "triton": TritonAnchor(), "eager": EagerAnchor()}

# embeddings (B, D), proxies (C, D), positive bias (B,), negative bias (B,) or None for the same, anchor bias (C,)
Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
# total, both log-sum-exps, dX, dP and both biases' gradients; None where not wanted, in a compiled graph empty
Outputs: TypeAlias = tuple[Tensor | None, ...]


class AnchorSweep(SweepFunction):
    """One sweep. Without scales it gives both log-sum-exps, with scales their weighted sum and all its gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Outputs:
        """Inputs, two scales, backend and operand type, wanted results, an update, and the options; in graphs flat."""
        inputs, scales, settings, want, update, options = _grouped(arguments)
        outputs = _checked_sweep(inputs, scales, settings, want, options, update)
        if inputs[1].device.type == "cpu" and not has_no_values(inputs[0]):
            total, positive, negative = outputs[:3]
            check_finite_proxies(positive.sum() + negative.sum() if total is None else total, inputs[1])
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        """Keep the inputs, and the gradients that came with a weighted sum."""
        tensors, scales, ctx.settings, ctx.want, ctx.update, options = _grouped(inputs)
        ctx.options, tensors_of_options = options[:2], options[2:]
        kept_gradients.save(ctx, (*tensors, *scales, output[2], *tensors_of_options), output[3:])
        ctx.weighted, ctx.dtype, ctx.one_bias = scales[0] is not None, tensors[0].dtype, tensors[3] is None
        ctx.mark_non_differentiable(*[gradient for gradient in output[3:] if gradient is not None])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, dtotal: Any, dpositive: Tensor | None, dnegative: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        """Scale the gradients that are there already, or sweep again with the upstream gradients."""
        needs = ctx.needs_input_grad[:5]
        nothing = (None,) * (len(ctx.needs_input_grad) - 5)
        # A compiled graph has zeros instead of None: only the scales show which results the sweep gave.
        given: Any = dtotal if ctx.weighted else dnegative if dpositive is None else dpositive
        if given is None:
            return (None,) * len(ctx.needs_input_grad)
        refuse_vmap(given)
        differentiable = torch.is_grad_enabled() and not has_no_values(given)
        if differentiable:
            refuse_update(
                ctx.update, "create_graph=True", "take it from a copy of the loss, which no optimiser is bound to"
            )
        if ctx.weighted and not differentiable:
            return (*_scaled(ctx, dtotal, needs), *nothing)
        saved = kept_gradients.saved(ctx)
        inputs, scales, tensors_of_options = saved[:5], saved[5:7], saved[8:]
        upstream = [scale * dtotal for scale in scales] if ctx.weighted else (dpositive, dnegative)
        first = partial(_first, ctx.settings, needs, ctx.options)
        factors = (inputs[2].new_zeros(()) if factor is None else factor.contiguous() for factor in upstream)
        tensors = (*inputs, *factors, *tensors_of_options)
        if differentiable:
            second = partial(second_derivative, ctx.options)
            results = Derivative.apply(first, second, 5, *tensors)  # type: ignore[no-untyped-call]
        else:
            results = first(*tensors)
        return (*results, *nothing)


def _grouped(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Inputs, scales, settings, wanted results, update and options of the arguments of :class:`AnchorSweep`."""
    return arguments[:5], arguments[5:7], arguments[7:9], arguments[9], arguments[10], arguments[11:]


def _options_of(parts: Sequence[Any]) -> AnchorOptions:
    """The options as they are, or of names, numbers and tensors."""
    if len(parts) == 1:
        return parts[0]  # type: ignore[no-any-return]
    names, numbers, *tensors = parts
    return unflatten(names, numbers, tensors)  # type: ignore[no-any-return]


def _checked_sweep(
    inputs: Inputs,
    upstream: Any,
    settings: tuple[str, torch.dtype],
    want: Sequence[bool],
    parts_of_options: Sequence[Any],
    update: ProxyUpdate | None = None,
) -> tuple[Any, ...]:
    """The outputs of one sweep over detached inputs, their values checked."""
    embeddings, proxies, positive_bias, negative_bias, anchor_bias = inputs
    if has_no_values(embeddings):
        names, numbers, *tensors = parts_of_options
        return anchor_sweep_op(*inputs, *upstream, *settings, want, names, numbers, tensors)  # type: ignore[no-any-return]
    check_finite_embeddings(embeddings)
    options, (backend, operand) = _options_of(parts_of_options), settings
    options.sets.check_range(count_selected(proxies, None if update is None else update.rows))
    chosen = choose(BACKENDS, backend, embeddings.device, positive_bias.dtype)
    negative_bias = positive_bias if negative_bias is None else negative_bias
    problem = AnchorProblem(options, positive_bias, negative_bias, anchor_bias)
    factors, scale = None if upstream[0] is None else tuple(upstream), 1.0
    if update is not None:
        for value in (*upstream, positive_bias, negative_bias, anchor_bias, *options.sets.tensors):
            # −inf is the logarithm of a weight of 0.
            if value is not None and value.device.type == "cpu" and not bool((value < torch.inf).all()):
                raise ValueError("a bias, a confidence or a scale is NaN or inf: no proxy has been updated")
        update.begin(proxies)
        scale = update.loss_scale
        factors = factors if scale == 1 else tuple(factor * scale for factor in upstream)
    result = anchor_sweep(embeddings, proxies, problem, factors, chosen, operand, Wanted(*want), update)
    if update is not None:
        update.finish()
    total, *others = vars(result).values()
    if total is not None:
        total = (total if scale == 1 else total / scale).to(positive_bias.dtype)
    return (total, *others)


def _anchor_bias_gradient(upstream: Tensor, lse_negative: Tensor) -> Tensor:
    """∂L/∂anchor_bias_p = upstream_p · Σ/(1+Σ), where 1+Σ = exp(negative_p)."""
    return -upstream * torch.expm1(-lse_negative)


def _of_inputs(
    dtype: torch.dtype, one_bias: bool, needs: Sequence[bool], gradients: Sequence[Any], anchor: Tensor | None
) -> tuple[Tensor | None, ...]:
    """One gradient for each input. Only now in the type of the embeddings: unscaled ones may lie below float16."""
    dX, dP, dpositive, dnegative = gradients
    if one_bias and needs[2]:
        dpositive, dnegative = dpositive + dnegative, None
    given = (dX.to(dtype) if needs[0] else None, dP, dpositive, dnegative)
    return (*(gradient if need else None for gradient, need in zip(given, needs[:4], strict=True)), anchor)


def _scaled(ctx: Any, dtotal: Tensor, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The gradients of the weighted sum, which its sweep has made, times its upstream gradient."""
    # They are given away and scaled in place, so a second backward of the same graph sweeps again.
    gradients = kept_gradients.take(ctx)
    anchor = None
    if ctx.update is not None:
        if gradients is None:
            refuse_update(
                ctx.update, "a second backward of one graph", "add what is to be differentiated, and call backward once"
            )
        ctx.update.confirm(dtotal)
    if gradients is None or needs[4]:
        saved = kept_gradients.saved(ctx)
        inputs, scales, lse_negative, tensors_of_options = saved[:5], saved[5:7], saved[7], saved[8:]
    if gradients is None:
        options = (*ctx.options, *tensors_of_options)
        gradients = _checked_sweep(inputs, scales, ctx.settings, ctx.want, options)[3:]
    if needs[4]:
        anchor = _anchor_bias_gradient(scales[1], lse_negative) * dtotal
    scaled = gradients
    factor = None if ctx.update is None else ctx.update.scaler_factor
    if factor is not None:
        scaled = [None if gradient is None else gradient * factor for gradient in gradients]
    if ctx.update is None:  # the sweep of an update has used the upstream gradient
        scaled = scale_gradients(gradients, dtotal, BACKENDS, ctx.settings[0], (ctx.dtype, None, None, None))
    return _of_inputs(ctx.dtype, ctx.one_bias, needs, scaled, anchor)


def _first(settings: tuple[str, torch.dtype], needs: Sequence[bool], options: Sequence[Any], *tensors: Any) -> Results:
    """Gradients of Σ_p upstream_p · lse_p over both sums: one sweep."""
    inputs, upstream = tensors[:5], tensors[5:7]
    want = [needs[4], needs[0], needs[1], needs[2] or needs[3]]
    _, _, lse_negative, *gradients = _checked_sweep(inputs, upstream, settings, want, (*options, *tensors[7:]))
    anchor = _anchor_bias_gradient(upstream[1], lse_negative) if needs[4] else None
    return _of_inputs(inputs[0].dtype, inputs[3] is None, needs, gradients, anchor)


def second_derivative(parts_of_options: Sequence[Any], *tensors: Any) -> Results:
    """Derivatives of ⟨gradients of the sweep, vectors⟩ with respect to its five inputs and both upstream gradients."""
    # Tensors: inputs, upstream gradients, those of the options, and a vector for each input, or None.
    X, P, positive_bias, negative_bias, anchor_bias, *upstream = tensors[:7]
    vX, vP, v_positive, v_negative, v_anchor = tensors[-5:]
    options = _options_of((*parts_of_options, *tensors[7:-5]))
    dX, dpositive, dnegative, dP, danchor, *dupstream = second_derivatives(
        partial(_chunk_value, options),
        (X, positive_bias, negative_bias, P, anchor_bias, *upstream),
        (vX, v_positive, v_negative, vP, v_anchor, None, None),
        (False, False, False, True, True, *(factor.dim() == 1 for factor in upstream)),
        cache_rows(len(X) + 2 * X.shape[1], X.device),
        len(P),
    )
    return (dX, dP, dpositive, dnegative, danchor, *dupstream)


def _chunk_value(options: AnchorOptions, first: int, last: int, *tensors: Any) -> Tensor:
    """Σ_p upstream_p · lse_p of the classes ``first:last`` in differentiable PyTorch."""
    X, positive_bias, negative_bias, P, anchor_bias, upstream_positive, upstream_negative = tensors
    dtype = compute_dtype(X, P)
    cosine = unit_rows_twice(P.to(dtype)) @ unit_rows_twice(X.to(dtype)).t()
    scaled = options.alpha * cosine
    positive, log_weight = membership(options.sets, first, last, scaled)
    negative_exponent = (positive_bias if negative_bias is None else negative_bias) + scaled + log_weight
    if anchor_bias is not None:
        negative_exponent = negative_exponent + anchor_bias[:, None]
    lse_positive = _log_one_plus_sum((positive_bias - scaled + log_weight).masked_fill(~positive, -torch.inf))
    left_out = (
        positive if options.drop_similar_negatives is None else positive | (cosine > options.drop_similar_negatives)
    )
    lse_negative = _log_one_plus_sum(negative_exponent.masked_fill(left_out, -torch.inf))
    value: Tensor = (upstream_positive * lse_positive + upstream_negative * lse_negative).sum()
    return value


def _log_one_plus_sum(exponent: Tensor) -> Tensor:
    return torch.logsumexp(torch.nn.functional.pad(exponent, (1, 0)), dim=1)


@registered_op(
    "robustdml_ops::anchor_sweep",
    "(Tensor embeddings, Tensor proxies, Tensor positive_bias, Tensor? negative_bias, Tensor? anchor_bias, "
    f"Tensor? upstream_positive, Tensor? upstream_negative, str backend, ScalarType operand, bool[] want, {SCHEMA}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def anchor_sweep_op(*arguments: Any) -> tuple[Tensor, ...]:
    """One sweep; ``want`` as :class:`~robustdml_ops.ops.anchor.backends.Wanted`. Unwanted results are empty."""
    given: Any
    *given, want, names, numbers, tensors = arguments
    options = (names, numbers, *tensors)
    total, *lse, dX, dP, dpositive, dnegative = _checked_sweep(given[:5], given[5:7], given[7:], want, options)
    # Memory of its own for each: the two log-sum-exps are rows of one buffer, which no registered op may return.
    lse = [None if value is None else value.clone() for value in lse]
    values = (total, *lse, dX, dP, dpositive, dnegative)
    return tuple(arguments[2].new_empty(0) if value is None else value for value in values)


@anchor_sweep_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    embeddings, proxies, positive_bias = arguments[:3]
    lse, dX, dP, biases = arguments[9]
    new, C = positive_bias.new_empty, proxies.shape[0]
    return (
        new(0 if arguments[5] is None else ()),
        new(C if lse else 0),
        new(C if lse else 0),
        new(embeddings.shape if dX else 0),
        gradient_buffer(proxies) if dP else new(0),
        new(positive_bias.shape if biases else 0),
        new(positive_bias.shape if biases else 0),
    )


def anchor_sweep(
    embeddings: Tensor,
    proxies: Tensor,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    operand: torch.dtype,
    want: Wanted,
    update: ProxyUpdate | None = None,
) -> SweepResult:
    """Log-sum-exps of every anchor, their weighted sum and its gradients: 6·B·C·D flops with both gradients."""
    selected = None if update is None else update.rows
    compute, C = problem.positive_bias.dtype, count_selected(proxies, selected)
    result, empty = SweepResult(), len(embeddings) == 0 or C == 0
    lse: Tensor | None = None
    if want.lse:
        new = embeddings.new_zeros if empty else embeddings.new_empty  # log(1 + 0)
        lse = new((2, C), dtype=compute)
        result.lse_positive, result.lse_negative = lse
    if want.biases:
        result.dpositive_bias = torch.zeros_like(problem.positive_bias)
        result.dnegative_bias = torch.zeros_like(problem.negative_bias)
    if empty:
        result.total = None if upstream is None else embeddings.new_zeros((), dtype=torch.float64)
        wanted = (want.embeddings, want.proxies)
        result.dembeddings, result.dproxies = gradients_without_samples(embeddings, proxies, compute, wanted, update)
        return result
    with without_autocast(embeddings.device):
        swept = Swept(proxies, selected=selected, per_row=problem.options.sets.per_class)
        similarities = Similarities(embeddings, swept, compute, operand, backend)
        similarities.want_gradients(want.embeddings, want.proxies, update)
        if backend.lanes_serve(proxies, similarities.X.dtype, compute) and problem.options.sets.in_place(compute):
            _sweep_by_lanes(similarities, problem, upstream, result)
        else:
            _sweep_by_chunks(similarities, problem, upstream, backend, result, want.gradients, lse)
        result.dembeddings, result.dproxies = similarities.gradients()
    return result


def _sweep_by_chunks(
    similarities: Similarities,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    result: SweepResult,
    gradients: bool,
    lse: Tensor | None,
) -> None:
    """A chunk of proxies at a time: product, epilogue, gradients of the chunk."""
    C = block = similarities.count
    if lse is None:
        # Half a megabyte of log-sum-exps at a time, 32 on a GPU: no launch per chunk, and little memory per class.
        most = 1 << 16 if similarities.X.device.type == "cpu" else 1 << 22
        block = min(C, similarities.rows * max(1, most // similarities.rows))
        lse = similarities.X.new_empty((2, block), dtype=similarities.compute)
    biases = (result.dpositive_bias, result.dnegative_bias)
    for chunk in similarities:
        place = chunk.first % block
        end = place + len(chunk.S)
        factors = None
        if gradients and upstream is not None:
            factors = slices_of(upstream, chunk.first, chunk.last)
        lse_positive, lse_negative = lse[:, place:end]
        sums = AnchorSums(factors, lse_positive, lse_negative, *biases)
        backend.anchor_lse(chunk, sums, problem)
        if upstream is not None and (chunk.last == C or end == block):
            summed = slices_of(upstream, chunk.first - place, chunk.last)
            result.total = _add_weighted(result.total, summed, lse[:, :end])
        similarities.backward(chunk)


def _add_weighted(total: Tensor | None, factors: tuple[Tensor, Tensor], lse: Tensor) -> Tensor | None:
    """Total + Σ factor · lse in float64, over both log-sum-exps (2, c)."""
    shared = all(factor.dim() == 0 for factor in factors)
    sums = lse.sum(1, dtype=torch.float64) if shared else lse
    for factor, value in zip(factors, sums, strict=True):
        if not shared:
            term = (factor * value).sum(dtype=torch.float64)
            total = term if total is None else total + term
        else:
            total = factor * value if total is None else total.addcmul_(factor, value)
    return total


def _sweep_by_lanes(
    similarities: Similarities, problem: AnchorProblem, upstream: tuple[Tensor, Tensor] | None, result: SweepResult
) -> None:
    """One call of the native module: each thread of the CPU takes chunks of proxies on its own."""
    compute, sets = similarities.compute, problem.options.sets
    result.total = None if upstream is None else similarities.X.new_zeros((), dtype=torch.float64)
    lse, biases = (result.lse_positive, result.lse_negative), (result.dpositive_bias, result.dnegative_bias)
    sums = AnchorSums(upstream, *lse, *biases)
    whole = problem.native_chunk(0, similarities.count, sums, problem.needs_row_max)
    given: dict[str, Any]
    if isinstance(sets, LabelSets):
        sorted_labels, order = sets.by_class()
        name, given = "labels", {"sorted_labels": sorted_labels, "order": order, "first_label": 0}
    else:
        name, given = "confidences", sets.arguments(compute)
    function = getattr(module.library, f"anchor_sweep_{name}_{module.SUFFIX[compute]}")
    fields = {**similarities.native_fields(), "total": module.address(result.total)}
    if function(whole, **module.addresses(given), **fields):
        similarities.check_proxy_gradients()
