"""The anchor log-sum-exp as an autograd function: in eager mode, ``torch.compile`` and ``torch.export``.

:class:`AnchorSweep` calls the sweep; compiled and exported graphs call it as the op ``robustdml_ops::anchor_sweep``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values
from robustdml_ops.engine.autograd_functions import scale_gradients
from robustdml_ops.engine.gradient_memory import gradient_buffer
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.older_torch import registered_op
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update, selected_rows
from robustdml_ops.engine.second_derivatives import Derivative, Results
from robustdml_ops.engine.similarity_chunks import count_selected
from robustdml_ops.engine.validation import check_finite_embeddings, check_finite_proxies, check_label_range
from robustdml_ops.ops.anchor.problem import AnchorProblem, ConfidenceSets, SweepResult, Wanted
from robustdml_ops.ops.anchor.second_derivative import second_derivative
from robustdml_ops.ops.anchor.sweep import BACKENDS, anchor_sweep

# embeddings (B, D), proxies (C, D), positive bias (B,), negative bias (B,) or None for the same, anchor bias (C,)
Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
# alpha, backend, type of the products' operands
Settings: TypeAlias = tuple[float, str, torch.dtype]
# total, both log-sum-exps, dX, dP and both biases' gradients; None where not wanted
Outputs: TypeAlias = tuple[
    Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None
]


class AnchorSweep(torch.autograd.Function):
    """One sweep. Without scales it gives both log-sum-exps, with scales their weighted sum and all its gradients."""

    @staticmethod
    def forward(*arguments: Any) -> Outputs:
        """Arguments: inputs, two scales or None, settings, wanted results, an update or None, and the sets.

        The sets are one argument in eager mode. A compiled graph, and ``torch.func``, take their numbers and tensors.
        """
        inputs, scales, settings, want, update, sets = _grouped(arguments)
        if has_no_values(inputs[0]):
            numbers, tensors = sets[:2], list(sets[2:])
            return anchor_sweep_op(*inputs, *scales, *settings, want, *numbers, tensors)  # type: ignore[no-any-return]
        result = _sweep(inputs, scales, settings, want, sets, update)
        total = None if result.total is None else result.total.to(inputs[2].dtype)
        _check_result(inputs[1], total, result)
        return (total, result.lse_positive, result.lse_negative, *_gradients(result))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        """Keep the inputs, and the gradients that came with a weighted sum."""
        tensors, scales, ctx.settings, ctx.want, ctx.update, sets = _grouped(inputs)
        lse_negative, ctx.gradients = output[2], output[3:]
        ctx.sets, tensors_of_sets = sets[:2], sets[2:]
        ctx.save_for_backward(*tensors, *scales, lse_negative, *tensors_of_sets)
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
        inputs, scales, _, tensors_of_sets = _saved(ctx.saved_tensors)
        upstream = [scale * dtotal for scale in scales] if ctx.weighted else (dpositive, dnegative)
        first = partial(_first, ctx.settings, needs, ctx.sets)
        tensors = (*inputs, *(_or_zero(factor, inputs[2]) for factor in upstream), *tensors_of_sets)
        if differentiable:
            second = partial(_second, ctx.settings, ctx.sets)
            results = Derivative.apply(first, second, 5, *tensors)  # type: ignore[no-untyped-call]
        else:
            results = first(*tensors)
        return (*results, *nothing)


def _grouped(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Inputs, scales, settings, wanted results, update, and the sets, of the arguments of :class:`AnchorSweep`."""
    return arguments[:5], arguments[5:7], arguments[7:10], arguments[10], arguments[11], arguments[12:]


def _saved(tensors: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Inputs, scales, negative log-sum-exps, tensors of the sets."""
    return tensors[:5], tensors[5:7], tensors[7], tensors[8:]


def _or_zero(upstream: Tensor | None, like: Tensor) -> Tensor:
    return like.new_zeros(()) if upstream is None else upstream.contiguous()


def _sets_of(parts: Sequence[Any]) -> LabelSets | ConfidenceSets:
    """The sets as they are, or put together of two numbers and their tensors.

    The numbers are β and threshold, or, with labels, whether some are of other processes, and 0.
    """
    sets: LabelSets | ConfidenceSets
    if len(parts) == 1:
        (sets,) = parts
        return sets
    beta, threshold, *tensors = parts
    if not tensors[0].is_floating_point():
        return replace(LabelSets(*tensors), elsewhere=bool(beta))
    if len(tensors) == 1:
        return ConfidenceSets(beta, threshold, confidences=tensors[0])
    return ConfidenceSets(beta, threshold, None, *tensors)


def _sweep(
    inputs: Inputs,
    upstream: Any,
    settings: Settings,
    want: Sequence[bool],
    parts_of_sets: Sequence[Any],
    update: ProxyUpdate | None = None,
) -> SweepResult:
    """One sweep over detached inputs, their values checked."""
    embeddings, proxies, positive_bias, negative_bias, anchor_bias = inputs
    check_finite_embeddings(embeddings)
    sets, (alpha, backend, operand) = _sets_of(parts_of_sets), settings
    if isinstance(sets, LabelSets) and not sets.elsewhere:
        check_label_range(sets.labels, count_selected(proxies, selected_rows(update)))
    chosen = choose(BACKENDS, backend, embeddings.device, positive_bias.dtype)
    negative_bias = positive_bias if negative_bias is None else negative_bias
    problem = AnchorProblem(alpha, positive_bias, negative_bias, anchor_bias, sets)
    factors = None if upstream[0] is None else tuple(upstream)
    if update is not None:
        assert factors is not None
        sweep = partial(anchor_sweep, embeddings, proxies, problem, backend=chosen, operand=operand, want=Wanted(*want))
        return _updating(sweep, problem, factors, proxies, update)
    return anchor_sweep(embeddings, proxies, problem, factors, chosen, operand, Wanted(*want))


def _updating(
    sweep: Callable[..., SweepResult],
    problem: AnchorProblem,
    factors: tuple[Tensor, ...],
    proxies: Tensor,
    update: ProxyUpdate,
) -> SweepResult:
    """The sweep that updates the proxies, once nothing can make a gradient that is not finite."""
    given = (*factors, problem.positive_bias, problem.negative_bias, problem.anchor_bias, *problem.sets.tensors)
    for value in given:
        # −inf is the logarithm of a weight of 0.
        if value is not None and value.device.type == "cpu" and not bool((value < torch.inf).all()):
            raise ValueError("a bias, a confidence or a scale is NaN or inf: no proxy has been updated")
    update.begin(proxies)
    scale = update.loss_scale
    result = sweep(upstream=factors if scale == 1 else tuple(factor * scale for factor in factors), update=update)
    update.finish()
    if result.total is not None:
        result.total /= scale
    return result


def _check_result(proxies: Tensor, total: Tensor | None, result: SweepResult) -> None:
    """Not for backward: there an upstream of inf is a loss scaler's affair. Nor on a GPU, where nothing is launched."""
    if proxies.device.type != "cpu":
        return
    if total is None:
        assert result.lse_positive is not None and result.lse_negative is not None
        total = result.lse_positive.sum() + result.lse_negative.sum()
    check_finite_proxies(total, proxies)


def _gradients(result: SweepResult) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    return result.dembeddings, result.dproxies, result.dpositive_bias, result.dnegative_bias


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
    return (
        dX.to(dtype) if needs[0] else None,
        dP if needs[1] else None,
        dpositive if needs[2] else None,
        dnegative if needs[3] else None,
        anchor,
    )


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
        inputs, scales, lse_negative, tensors_of_sets = _saved(ctx.saved_tensors)
    if gradients is None:
        gradients = _gradients(_sweep(inputs, scales, ctx.settings, ctx.want, (*ctx.sets, *tensors_of_sets)))
    if needs[4]:
        anchor = _anchor_bias_gradient(scales[1], lse_negative) * dtotal
    scaled = gradients
    if ctx.update is None:  # the sweep of an update has used the upstream gradient
        scaled = scale_gradients(gradients, dtotal, BACKENDS, ctx.settings[1])
    return _of_inputs(ctx.dtype, ctx.one_bias, needs, scaled, anchor)


def _first(settings: Settings, needs: Sequence[bool], sets: Sequence[Any], *tensors: Any) -> Results:
    """Gradients of Σ_p upstream_p · lse_p over both sums: one sweep."""
    inputs, upstream, sets = tensors[:5], tensors[5:7], (*sets, *tensors[7:])
    want = [needs[4], needs[0], needs[1], needs[2] or needs[3]]
    if has_no_values(inputs[0]):
        numbers, of_sets = sets[:2], list(sets[2:])
        _, _, lse_negative, *gradients = anchor_sweep_op(*inputs, *upstream, *settings, want, *numbers, of_sets)
    else:
        result = _sweep(inputs, upstream, settings, want, sets)
        lse_negative, gradients = result.lse_negative, list(_gradients(result))
    anchor = _anchor_bias_gradient(upstream[1], lse_negative) if needs[4] else None
    return _of_inputs(inputs[0].dtype, inputs[3] is None, needs, gradients, anchor)


def _second(settings: Settings, sets: Sequence[Any], *tensors: Any) -> Results:
    """Second derivatives, see :func:`second_derivative`."""
    of_sets = _sets_of((*sets, *tensors[7:-5]))
    return second_derivative(tensors[:5], tensors[5:7], tensors[-5:], of_sets, settings[0])


@registered_op("robustdml_ops::anchor_sweep")
def anchor_sweep_op(
    embeddings: Tensor,
    proxies: Tensor,
    positive_bias: Tensor,
    negative_bias: Tensor | None,
    anchor_bias: Tensor | None,
    upstream_positive: Tensor | None,
    upstream_negative: Tensor | None,
    alpha: float,
    backend: str,
    operand: torch.dtype,
    want: Sequence[bool],
    beta: float,
    threshold: float,
    sets: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One sweep; ``want`` as :class:`~robustdml_ops.ops.anchor.sweep.Wanted`. Unwanted results are empty."""
    inputs = (embeddings, proxies, positive_bias, negative_bias, anchor_bias)
    upstream = (upstream_positive, upstream_negative)
    result = _sweep(inputs, upstream, (alpha, backend, operand), want, (beta, threshold, *sets))
    total = None if result.total is None else result.total.to(positive_bias.dtype)
    # Memory of its own for each: the two log-sum-exps are rows of one buffer, which no registered op may return.
    lse = [None if value is None else value.clone() for value in (result.lse_positive, result.lse_negative)]
    values = (total, *lse, *_gradients(result))
    return tuple(positive_bias.new_empty(0) if value is None else value for value in values)  # type: ignore[return-value]


@anchor_sweep_op.register_fake
def _(
    embeddings: Tensor,
    proxies: Tensor,
    positive_bias: Tensor,
    negative_bias: Tensor | None,
    anchor_bias: Tensor | None,
    upstream_positive: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    lse, dX, dP, biases = rest[4]
    new, C = positive_bias.new_empty, proxies.shape[0]
    return (
        new(() if upstream_positive is not None else 0),
        new(C if lse else 0),
        new(C if lse else 0),
        new(embeddings.shape if dX else 0),
        gradient_buffer(proxies) if dP else new(0),
        new(positive_bias.shape if biases else 0),
        new(positive_bias.shape if biases else 0),
    )
