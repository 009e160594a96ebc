"""The ops as ``torch.library`` registers them: what ``torch.compile`` and ``torch.export`` see, without a graph break.

In eager mode nothing comes through here: the registry costs tens of microseconds a call.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.problem import ConfidenceSets, LabelSets
from robustdml_ops.engine.sweep import SweepResult, Wanted
from robustdml_ops.ops.anchor_lse import anchor_bias_gradient, run_forward, run_sweep

Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _sets(
    labels: Tensor | None,
    confidences: Tensor | None,
    hidden: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    beta: float,
    threshold: float,
) -> LabelSets | ConfidenceSets:
    if labels is not None:
        return LabelSets.of(labels)
    return ConfidenceSets(beta, threshold, confidences, hidden, weight, bias)


def _all(result: SweepResult, like: Tensor) -> Results:
    """Every result as a tensor; empty where it was not asked for."""
    fields = ("total", "lse_positive", "lse_negative", "dembeddings", "dproxies", "dpositive_bias", "dnegative_bias")
    values = [like.new_empty(0) if (value := getattr(result, field)) is None else value for field in fields]
    # Memory of its own for each: the two log-sum-exps are rows of one buffer, which no registered op may return.
    own = (value.clone() if field.startswith("lse") else value for field, value in zip(fields, values, strict=True))
    return tuple(own)  # type: ignore[return-value]


@torch.library.custom_op("robustdml_ops::anchor_sweep", mutates_args=())
def anchor_sweep_op(
    embeddings: Tensor,
    proxies: Tensor,
    positive_bias: Tensor,
    negative_bias: Tensor,
    anchor_bias: Tensor | None,
    upstream_positive: Tensor | None,
    upstream_negative: Tensor | None,
    labels: Tensor | None,
    confidences: Tensor | None,
    hidden: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    beta: float,
    threshold: float,
    alpha: float,
    backend: str,
    want: Sequence[bool],
) -> Results:
    """One sweep; ``want`` = (lse, embeddings, proxies, biases). Not differentiable: the two ops below are."""
    upstream = None
    if upstream_positive is not None and upstream_negative is not None:
        upstream = (upstream_positive, upstream_negative)
    sets = _sets(labels, confidences, hidden, weight, bias, beta, threshold)
    tensors = (embeddings, proxies, positive_bias, negative_bias, anchor_bias)
    return _all(run_sweep(tensors, upstream, sets, alpha, backend, Wanted(*want)), positive_bias)


@anchor_sweep_op.register_fake
def _(
    embeddings: Tensor,
    proxies: Tensor,
    positive_bias: Tensor,
    negative_bias: Tensor,
    anchor_bias: Tensor | None,
    upstream_positive: Tensor | None,
    *rest: Any,
) -> Results:
    lse, dX, dP, biases = rest[-1]
    new = positive_bias.new_empty
    none = new(0)
    C = proxies.shape[0]
    return (
        new((), dtype=torch.float64) if upstream_positive is not None else none,
        new(C) if lse else none,
        new(C) if lse else new(0),
        new(embeddings.shape) if dX else new(0),
        proxies.new_empty(proxies.shape) if dP else new(0),
        torch.empty_like(positive_bias) if biases else new(0),
        torch.empty_like(negative_bias) if biases else new(0),
    )


_NO_GRADIENT = (None,) * 9  # labels, confidences, hidden, weight, bias, beta, threshold, alpha, backend


@torch.library.custom_op("robustdml_ops::anchor_lse", mutates_args=())
def anchor_lse_op(
    embeddings: Tensor,
    proxies: Tensor,
    positive_bias: Tensor,
    negative_bias: Tensor,
    anchor_bias: Tensor | None,
    labels: Tensor | None,
    confidences: Tensor | None,
    hidden: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    beta: float,
    threshold: float,
    alpha: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """See :func:`robustdml_ops.ops.anchor_lse`."""
    sets = _sets(labels, confidences, hidden, weight, bias, beta, threshold)
    tensors = (embeddings, proxies, positive_bias, negative_bias, anchor_bias)
    result = run_forward(tensors, None, sets, alpha, backend, Wanted(lse=True))
    assert result.lse_positive is not None and result.lse_negative is not None
    # As in _all.
    return result.lse_positive.clone(), result.lse_negative.clone()


@anchor_lse_op.register_fake
def _(embeddings: Tensor, proxies: Tensor, positive_bias: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    C = proxies.shape[0]
    return positive_bias.new_empty(C), positive_bias.new_empty(C)


def _lse_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *inputs[5:10], output[1])
    ctx.settings = inputs[10:]


def _lse_backward(ctx: Any, upstream_positive: Tensor, upstream_negative: Tensor) -> tuple[Any, ...]:
    *tensors, lse_negative = ctx.saved_tensors
    inputs, sets = tensors[:5], tensors[5:]
    needs = ctx.needs_input_grad
    want = (False, needs[0], needs[1], needs[2] or needs[3])
    upstream = (upstream_positive.contiguous(), upstream_negative.contiguous())
    _, _, _, dX, dP, dp, dn = anchor_sweep_op(*inputs, *upstream, *sets, *ctx.settings, want)
    anchor = anchor_bias_gradient(upstream_negative, lse_negative) if needs[4] else None
    biases = (dp, dn) if needs[2] or needs[3] else (None, None)
    return (
        dX.to(inputs[0].dtype) if needs[0] else None,
        dP if needs[1] else None,
        *biases,
        anchor,
        *_NO_GRADIENT,
    )


anchor_lse_op.register_autograd(_lse_backward, setup_context=_lse_context)


@torch.library.custom_op("robustdml_ops::anchor_loss", mutates_args=())
def anchor_loss_op(
    embeddings: Tensor,
    proxies: Tensor,
    positive_bias: Tensor,
    negative_bias: Tensor,
    anchor_bias: Tensor | None,
    positive_scale: Tensor,
    negative_scale: Tensor,
    labels: Tensor | None,
    confidences: Tensor | None,
    hidden: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    beta: float,
    threshold: float,
    alpha: float,
    backend: str,
    needs: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See :func:`robustdml_ops.ops.anchor_loss`; also returns dX, dP, both bias gradients and the negative lse."""
    sets = _sets(labels, confidences, hidden, weight, bias, beta, threshold)
    tensors = (embeddings, proxies, positive_bias, negative_bias, anchor_bias)
    want = Wanted(embeddings=needs[0], proxies=needs[1], biases=needs[2] or needs[3], lse=needs[4])
    result = run_forward(tensors, (positive_scale, negative_scale), sets, alpha, backend, want)
    total, _, lse_negative, *gradients = _all(result, positive_bias)
    dX, dP, dp, dn = gradients
    return total.to(positive_bias.dtype, copy=True), dX, dP, dp, dn, lse_negative


@anchor_loss_op.register_fake
def _(
    embeddings: Tensor, proxies: Tensor, positive_bias: Tensor, negative_bias: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    needs = rest[-1]
    new = positive_bias.new_empty
    biases = needs[2] or needs[3]
    return (
        new(()),
        new(embeddings.shape) if needs[0] else new(0),
        proxies.new_empty(proxies.shape) if needs[1] else new(0),
        torch.empty_like(positive_bias) if biases else new(0),
        torch.empty_like(negative_bias) if biases else new(0),
        new(proxies.shape[0]) if needs[4] else new(0),
    )


def _loss_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], inputs[6])
    ctx.embeddings_dtype = inputs[0].dtype
    ctx.set_materialize_grads(False)


def _loss_backward(ctx: Any, upstream: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    dX, dP, dp, dn, lse_negative, negative_scale = ctx.saved_tensors
    needs = ctx.needs_input_grad
    biases = needs[2] or needs[3]
    return (
        (dX * upstream).to(ctx.embeddings_dtype) if needs[0] else None,
        (dP * upstream).to(dP.dtype) if needs[1] else None,
        dp * upstream if biases else None,
        dn * upstream if biases else None,
        anchor_bias_gradient(negative_scale, lse_negative) * upstream if needs[4] else None,
        *(None, None),
        *_NO_GRADIENT,
        None,
    )


anchor_loss_op.register_autograd(_loss_backward, setup_context=_loss_context)
