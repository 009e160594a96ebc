"""A step of a loss is planned once for each signature of its calls, and then run.

The signature of a call is all that shapes, types and settings tell. The first call of a signature checks it and makes a
:class:`Plan`, which knows the backend, the chunks and the arguments of the kernels; later calls look it up and ask
nothing again. Values, such as the range of labels, are looked at while the plan runs.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import in_eager_mode, refuse_vmap
from robustdml_ops.backends.triton_device import exact_float32_products
from robustdml_ops.engine import similarity_chunks as chunks

# Signatures that a loss keeps; batches of changing length evict the oldest.
MOST = 16
_PLAIN = (Tensor, torch.nn.Parameter)
_BACKEND = "ROBUSTDML_BACKEND"

# The loss (), and a gradient for each of the leading tensors, None where none is wanted.
Results = tuple[Tensor, list[Tensor | None]]


@dataclass(frozen=True)
class Plan:
    """What a step of one signature does. It holds no tensor of a call."""

    wanted: tuple[bool, ...]  # which of the leading tensors want a gradient

    def run(self, *tensors: Any) -> Results | None:
        """Value and gradients, without a graph; None where a value needs the general way, or its error."""
        raise NotImplementedError

    def general(self, *tensors: Any) -> Tensor:
        """The same loss by ops that are twice differentiable, with the settings of the plan."""
        raise NotImplementedError

    def scale(self, gradients: list[Tensor | None], upstream: Tensor) -> list[Tensor | None]:
        """The gradients times the upstream gradient (), in their own memory."""
        if upstream.item() != 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(upstream)
        return gradients


def native_weights_serve(weights: Tensor | None, samples: Tensor) -> bool:
    """Whether a native step takes these weights, (B,) or None, of ``samples`` (B, D), after a conversion of type."""
    if weights is None:
        return True
    known = weights.is_floating_point() or weights.dtype == torch.bool
    return known and weights.is_cpu and weights.shape == samples.shape[:1] and not weights.requires_grad


class Step(torch.autograd.Function):
    """A loss whose gradients have been made with it, for an upstream gradient of 1."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, results: Results, *tensors: Tensor | None) -> Tensor:
        """The value that ``plan`` has made of ``tensors``."""
        ctx.save_for_backward(*tensors)
        ctx.plan = plan
        loss, ctx.gradients = results
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients, once; a second backward, and one that is differentiated, take the general way."""
        plan, gradients, again = ctx.plan, ctx.gradients, torch.is_grad_enabled()
        ctx.gradients = None
        try:
            found = _by_general_way(ctx, upstream) if gradients is None or again else plan.scale(gradients, upstream)
        except RuntimeError:
            refuse_vmap(upstream)  # asked here alone, where it takes no time of a step
            raise
        return (None, None, *found, *(None,) * (len(ctx.needs_input_grad) - 2 - len(found)))


def _by_general_way(ctx: Any, upstream: Tensor) -> list[Tensor | None]:
    plan, tensors, again = ctx.plan, ctx.saved_tensors, torch.is_grad_enabled()
    with torch.enable_grad():
        loss = plan.general(*tensors)
    leading = [tensor for tensor, wanted in zip(tensors, plan.wanted, strict=False) if wanted]
    found = iter(torch.autograd.grad(loss, leading, upstream, create_graph=again))
    return [next(found) if wanted else None for wanted in plan.wanted]


class Plans:
    """The plans of one loss, by signature; None where a signature needs the general way."""

    def __init__(self) -> None:
        self.known: dict[Any, Plan | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies of a loss make their own plans."""
        return Plans, ()

    def step(self, settings: tuple[Any, ...], tensors: Sequence[Any], make: Callable[[], Plan | None]) -> Tensor | None:
        """The loss of a planned step of ``tensors``; None: take the general way. ``make`` serves a new signature."""
        signature = _signature(settings, tensors)
        if signature is None:
            return None
        try:
            plan = self.known[signature]
        except KeyError:
            plan = make()
            if len(self.known) >= MOST:
                self.known.pop(next(iter(self.known)), None)  # another thread may have been quicker
            self.known[signature] = plan
        results = None if plan is None else plan.run(*tensors)
        if plan is None or results is None:
            return None
        if True not in plan.wanted:
            return results[0]
        # Without what PyTorch does for defaults and dead wrappers, which takes 30 µs.
        loss: Tensor = super(torch.autograd.Function, Step).apply(plan, results, *tensors)  # type: ignore[no-untyped-call]
        return loss


def _signature(settings: tuple[Any, ...], tensors: Sequence[Any]) -> tuple[Any, ...] | None:
    """All that a plan depends on; None for inputs that no plan serves."""
    described: list[Any] = []
    for tensor in tensors:
        if tensor is None:
            described.append(None)
        elif type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_nested:
            layout = (tensor.shape, tensor.stride())
            described.append((type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, *layout))
        else:
            return None
    first = tensors[0]
    if first is None or not in_eager_mode(first) or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return None
    kind = first.device.type
    autocast = kind != "meta" and torch.is_autocast_enabled(kind)
    modes = (torch.is_grad_enabled(), autocast, torch.get_num_threads(), os.environ.get(_BACKEND), chunks.saved_limit)
    rounding = kind == "cuda" and exact_float32_products(first.device)
    return (*described, *settings, *modes, rounding)
