"""The class log-sum-exp as ``torch.library`` registers it; see :mod:`robustdml_ops.ops.library`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.ops.class_lse import ClassSettings, run_backward, run_forward


@torch.library.custom_op("robustdml_ops::class_lse", mutates_args=())
def class_lse_op(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    centers: int,
    target_bias: float,
    pooling: str,
    gamma: float,
    exclude_target: bool,
    normalize: bool,
    differentiable: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """See :func:`robustdml_ops.ops.class_lse`; the proxies are (C·H, D)."""
    settings = ClassSettings(centers, target_bias, pooling, gamma, exclude_target, normalize, differentiable, backend)
    return run_forward((embeddings, proxies, labels, scale, bias), settings)


@class_lse_op.register_fake
def _(embeddings: Tensor, proxies: Tensor, labels: Tensor, scale: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return scale.new_empty(embeddings.shape[0]), scale.new_empty(embeddings.shape[0])


@torch.library.custom_op("robustdml_ops::class_lse_backward", mutates_args=())
def class_lse_backward_op(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    lse: Tensor,
    target: Tensor,
    dlse: Tensor,
    dtarget: Tensor,
    centers: int,
    target_bias: float,
    pooling: str,
    gamma: float,
    exclude_target: bool,
    normalize: bool,
    differentiable: bool,
    backend: str,
    want: Sequence[bool],
) -> tuple[Tensor, Tensor]:
    """Both gradients; empty where they are not wanted. Not differentiable."""
    settings = ClassSettings(centers, target_bias, pooling, gamma, exclude_target, normalize, differentiable, backend)
    tensors = (embeddings, proxies, labels, scale, bias)
    dX, dP = run_backward(tensors, (lse, target), (dlse, dtarget), settings, (want[0], want[1]))
    empty = scale.new_empty(0)
    return empty if dX is None else dX, empty.clone() if dP is None else dP


@class_lse_backward_op.register_fake
def _(embeddings: Tensor, proxies: Tensor, labels: Tensor, scale: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    want = rest[-1]
    return (
        scale.new_empty(embeddings.shape if want[0] else 0),
        proxies.new_empty(proxies.shape) if want[1] else scale.new_empty(0),
    )


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.settings = inputs[5:]


def _backward(ctx: Any, dlse: Tensor, dtarget: Tensor) -> tuple[Any, ...]:
    *tensors, lse, target = ctx.saved_tensors
    want = ctx.needs_input_grad[:2]
    dX, dP = class_lse_backward_op(
        *tensors, lse, target, dlse.contiguous(), dtarget.contiguous(), *ctx.settings, list(want)
    )
    gradients = (dX.to(tensors[0].dtype) if want[0] else None, dP if want[1] else None)
    return (*gradients, *(None,) * (3 + len(ctx.settings)))


class_lse_op.register_autograd(_backward, setup_context=_context)
