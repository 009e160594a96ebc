"""The anchor log-sum-exp as an autograd function, twice differentiable, and the op ``robustdml_ops::anchor_sweep``."""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import choose, compute_dtype, has_no_values, registered_op
from robustdml_ops.engine.labels import ELSEWHERE, LabelSets, check_label_range
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update
from robustdml_ops.engine.rows.backends import gradient_buffer, scale_gradients
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Derivative, Results, second_derivatives
from robustdml_ops.engine.similarity_chunks import cache_rows, count_selected
from robustdml_ops.engine.validation import check_finite_embeddings, check_finite_proxies
from robustdml_ops.ops.anchor.backends import membership
from robustdml_ops.ops.anchor.problem import AnchorProblem, ConfidenceSets, Wanted, sets_of
from robustdml_ops.ops.anchor.sweep import BACKENDS, anchor_sweep

# embeddings (B, D), proxies (C, D), positive bias (B,), negative bias (B,) or None for the same, anchor bias (C,)
Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
# alpha, backend, type of the products' operands
Settings: TypeAlias = tuple[float, str, torch.dtype]
# total, both log-sum-exps, dX, dP and both biases' gradients; None where not wanted, in a compiled graph empty
Outputs: TypeAlias = tuple[Tensor | None, ...]


class AnchorSweep(torch.autograd.Function):
    """One sweep. Without scales it gives both log-sum-exps, with scales their weighted sum and all its gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Outputs:
        """Inputs, two scales, limits, settings, wanted results, an update, and the sets; in graphs their parts."""
        inputs, scales, limits, settings, want, update, sets = _grouped(arguments)
        outputs = _sweep(inputs, scales, limits, settings, want, sets, update)
        if inputs[1].device.type == "cpu" and not has_no_values(inputs[0]):
            total, positive, negative = outputs[:3]
            check_finite_proxies(positive.sum() + negative.sum() if total is None else total, inputs[1])
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        """Keep the inputs, and the gradients that came with a weighted sum."""
        tensors, scales, limits, ctx.settings, ctx.want, ctx.update, sets = _grouped(inputs)
        lse_negative, ctx.gradients = output[2], output[3:]
        ctx.sets, tensors_of_sets = sets[:2], sets[2:]
        ctx.save_for_backward(*tensors, *scales, limits, lse_negative, *tensors_of_sets)
        ctx.weighted, ctx.dtype, ctx.one_bias = scales[0] is not None, tensors[0].dtype, tensors[3] is None
        ctx.mark_non_differentiable(*[gradient for gradient in ctx.gradients if gradient is not None])
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
        differentiable = torch.is_grad_enabled() and not has_no_values(given)
        if differentiable:
            refuse_update(
                ctx.update, "create_graph=True", "take it from a copy of the loss, which no optimiser is bound to"
            )
        if ctx.weighted and not differentiable:
            return (*_scaled(ctx, dtotal, needs), *nothing)
        saved = ctx.saved_tensors
        inputs, scales, limits, tensors_of_sets = saved[:5], saved[5:7], saved[7], saved[9:]
        upstream = [scale * dtotal for scale in scales] if ctx.weighted else (dpositive, dnegative)
        first = partial(_first, ctx.settings, needs, ctx.sets)
        factors = (inputs[2].new_zeros(()) if factor is None else factor.contiguous() for factor in upstream)
        tensors = (*inputs, *factors, limits, *tensors_of_sets)
        if differentiable:
            second = partial(second_derivative, ctx.settings[0], ctx.sets)
            results = Derivative.apply(first, second, 5, *tensors)  # type: ignore[no-untyped-call]
        else:
            results = first(*tensors)
        return (*results, *nothing)


def _grouped(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Inputs, scales, limits, settings, wanted results, update and sets of the arguments of :class:`AnchorSweep`."""
    return arguments[:5], arguments[5:7], arguments[7], arguments[8:11], arguments[11], arguments[12], arguments[13:]


def _sweep(
    inputs: Inputs,
    upstream: Any,
    limits: Tensor | None,
    settings: Settings,
    want: Sequence[bool],
    parts_of_sets: Sequence[Any],
    update: ProxyUpdate | None = None,
) -> tuple[Any, ...]:
    """The outputs of one sweep over detached inputs, their values checked."""
    embeddings, proxies, positive_bias, negative_bias, anchor_bias = inputs
    if has_no_values(embeddings):
        numbers, tensors = parts_of_sets[:2], list(parts_of_sets[2:])
        given = (*inputs, *upstream, limits, *settings, want, *numbers, tensors)
        return anchor_sweep_op(*given)  # type: ignore[no-any-return]
    check_finite_embeddings(embeddings)
    sets, (alpha, backend, operand) = sets_of(parts_of_sets), settings
    if isinstance(sets, LabelSets) and not sets.elsewhere:
        labels = sets.labels if sets.labels.dim() == 1 else sets.labels.masked_fill(sets.labels == ELSEWHERE, 0)
        check_label_range(labels, count_selected(proxies, None if update is None else update.rows))
    chosen = choose(BACKENDS, backend, embeddings.device, positive_bias.dtype)
    negative_bias = positive_bias if negative_bias is None else negative_bias
    problem = AnchorProblem(alpha, positive_bias, negative_bias, anchor_bias, sets, limits)
    factors, scale = None if upstream[0] is None else tuple(upstream), 1.0
    if update is not None:
        for value in (*upstream, positive_bias, negative_bias, anchor_bias, *sets.tensors):
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
    gradients, ctx.gradients = ctx.gradients, None
    anchor = None
    if ctx.update is not None:
        if gradients is None:
            refuse_update(
                ctx.update, "a second backward of one graph", "add what is to be differentiated, and call backward once"
            )
        ctx.update.confirm(dtotal)
    if gradients is None or needs[4]:
        # Read once: torch.utils.checkpoint gives them out a single time.
        saved = ctx.saved_tensors
        inputs, scales, limits, lse_negative, tensors_of_sets = saved[:5], saved[5:7], saved[7], saved[8], saved[9:]
    if gradients is None:
        gradients = _sweep(inputs, scales, limits, ctx.settings, ctx.want, (*ctx.sets, *tensors_of_sets))[3:]
    if needs[4]:
        anchor = _anchor_bias_gradient(scales[1], lse_negative) * dtotal
    scaled = gradients
    if ctx.update is None:  # the sweep of an update has used the upstream gradient
        scaled = scale_gradients(gradients, dtotal, BACKENDS, ctx.settings[1], (ctx.dtype, None, None, None))
    return _of_inputs(ctx.dtype, ctx.one_bias, needs, scaled, anchor)


def _first(settings: Settings, needs: Sequence[bool], sets: Sequence[Any], *tensors: Any) -> Results:
    """Gradients of Σ_p upstream_p · lse_p over both sums: one sweep."""
    inputs, upstream, limits, sets = tensors[:5], tensors[5:7], tensors[7], (*sets, *tensors[8:])
    want = [needs[4], needs[0], needs[1], needs[2] or needs[3]]
    _, _, lse_negative, *gradients = _sweep(inputs, upstream, limits, settings, want, sets)
    anchor = _anchor_bias_gradient(upstream[1], lse_negative) if needs[4] else None
    return _of_inputs(inputs[0].dtype, inputs[3] is None, needs, gradients, anchor)


def second_derivative(alpha: float, parts_of_sets: Sequence[Any], *tensors: Any) -> Results:
    """Derivatives of ⟨gradients of the sweep, vectors⟩ with respect to its five inputs and both upstream gradients."""
    # Tensors: inputs, upstream gradients, limits, those of the sets, and a vector for each input, or None.
    X, P, positive_bias, negative_bias, anchor_bias, *upstream, drop_above = tensors[:8]
    vX, vP, v_positive, v_negative, v_anchor = tensors[-5:]
    sets = sets_of((*parts_of_sets, *tensors[8:-5]))
    dX, dpositive, dnegative, dP, danchor, *dupstream = second_derivatives(
        partial(_chunk_value, sets, alpha, drop_above),
        (X, positive_bias, negative_bias, P, anchor_bias, *upstream),
        (vX, v_positive, v_negative, vP, v_anchor, None, None),
        (False, False, False, True, True, *(factor.dim() == 1 for factor in upstream)),
        cache_rows(len(X) + 2 * X.shape[1], X.device),
        len(P),
    )
    return (dX, dP, dpositive, dnegative, danchor, *dupstream)


def _chunk_value(
    sets: LabelSets | ConfidenceSets, alpha: float, drop_above: Tensor | None, first: int, last: int, *tensors: Any
) -> Tensor:
    """Σ_p upstream_p · lse_p of the classes ``first:last`` in differentiable PyTorch."""
    X, positive_bias, negative_bias, P, anchor_bias, upstream_positive, upstream_negative = tensors
    dtype = compute_dtype(X, P)
    cosine = unit_rows_twice(P.to(dtype)) @ unit_rows_twice(X.to(dtype)).t()
    scaled = alpha * cosine
    positive, log_weight = membership(sets, first, last, scaled)
    negative_exponent = (positive_bias if negative_bias is None else negative_bias) + scaled + log_weight
    if anchor_bias is not None:
        negative_exponent = negative_exponent + anchor_bias[:, None]
    lse_positive = _log_one_plus_sum((positive_bias - scaled + log_weight).masked_fill(~positive, -torch.inf))
    left_out = positive if drop_above is None else positive | (cosine > drop_above)
    lse_negative = _log_one_plus_sum(negative_exponent.masked_fill(left_out, -torch.inf))
    value: Tensor = (upstream_positive * lse_positive + upstream_negative * lse_negative).sum()
    return value


def _log_one_plus_sum(exponent: Tensor) -> Tensor:
    return torch.logsumexp(torch.nn.functional.pad(exponent, (1, 0)), dim=1)


@registered_op(
    "robustdml_ops::anchor_sweep",
    "(Tensor embeddings, Tensor proxies, Tensor positive_bias, Tensor? negative_bias, Tensor? anchor_bias, "
    "Tensor? upstream_positive, Tensor? upstream_negative, Tensor? drop_above, float alpha, str backend, "
    "ScalarType operand, bool[] want, float beta, float threshold, Tensor[] sets) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def anchor_sweep_op(*arguments: Any) -> tuple[Tensor, ...]:
    """One sweep; ``want`` as :class:`~robustdml_ops.ops.anchor.problem.Wanted`. Unwanted results are empty."""
    given: Any
    *given, want, beta, threshold, sets = arguments
    sets = (beta, threshold, *sets)
    total, *lse, dX, dP, dpositive, dnegative = _sweep(given[:5], given[5:7], given[7], given[8:], want, sets)
    # Memory of its own for each: the two log-sum-exps are rows of one buffer, which no registered op may return.
    lse = [None if value is None else value.clone() for value in lse]
    values = (total, *lse, dX, dP, dpositive, dnegative)
    return tuple(arguments[2].new_empty(0) if value is None else value for value in values)


@anchor_sweep_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    embeddings, proxies, positive_bias = arguments[:3]
    lse, dX, dP, biases = arguments[11]
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
