"""How an operation runs: directly or as a registered op, in which types, and on which backend.

The backends are ``native`` (C++ and CUDA), ``triton``, and ``eager`` (plain PyTorch).
"""

import os
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from robustdml_ops.backends import native_module, self_check, triton_device
from robustdml_ops.backends.cards import card

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

BackendT = TypeVar("BackendT")
P = ParamSpec("P")
R = TypeVar("R")

_FAKE = torch._C._TorchDispatchModeKey.FAKE

# Whether ``addmm`` adds a product of half-precision operands to a float32 matrix. Up to 2.7 there is no ``out_dtype``;
# 2.8 and 2.9 take it and raise "self and mat2 must have the same dtype".
ADDS_HALF_PRODUCTS = torch.__version__ >= "2.10"  # compared as versions

_NO_VMAP = (
    "a fused loss or op takes one batch, and vmap gives it several at once, as do jacrev, jacfwd, hessian, "
    "jacobian(vectorize=True) and is_grads_batched=True: loop over the batches, or take "
    "torch.autograd.functional.jacobian with vectorize=False"
)

# Why a backend can't serve a device in a compute type, or None.
UNAVAILABLE: dict[str, Callable[[torch.device, torch.dtype], str | None]] = {
    "native": native_module.unavailable,
    "triton": triton_device.unavailable,
    "eager": lambda device, dtype: None,
}

# Fastest first, elsewhere than on CUDA devices, of which ``cards.json`` has the order.
PREFERENCE: dict[str, tuple[str, ...]] = {"cpu": ("native", "eager")}


def has_no_values(tensor: Tensor) -> bool:
    """Whether ``tensor`` has no values to read, as while a graph is made: then ops are called by their registration."""
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return True
    return torch._C._get_dispatch_mode(_FAKE) is not None


def in_eager_mode(tensor: Tensor) -> bool:
    """``tensor`` has values, and no transform of ``torch.func`` or forward mode is at work."""
    return not in_registry(tensor) and torch.autograd.forward_ad._current_level < 0


def in_registry(tensor: Tensor) -> bool:
    """Whether an op without an autograd function is called by its registration, which ``torch.func`` can transform."""
    return has_no_values(tensor) or torch._C._are_functorch_transforms_active()


def is_recorded(device: torch.device) -> bool:
    """Whether the current stream is captured into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def refuse_tracing() -> None:
    """Refuse ``torch.jit.trace``, which would take results of compiled code for constants."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(
            "torch.jit.trace sees nothing of what this op computes, and would keep its results as constants: take "
            "torch.export or torch.compile"
        )


def refuse_vmap(*tensors: Tensor | None) -> None:
    """Refuse tensors that ``torch.vmap`` has batched, whose values no native code can read."""
    if torch.compiler.is_compiling():  # which knows no such tensors
        return
    functorch: Any = torch._C._functorch
    for tensor in tensors:
        while tensor is not None:
            if functorch.is_batchedtensor(tensor) or functorch.is_legacy_batchedtensor(tensor):
                raise RuntimeError(_NO_VMAP)
            wrapped = functorch.is_functorch_wrapped_tensor(tensor)
            tensor = functorch.get_unwrapped(tensor) if wrapped else None


class SweepFunction(torch.autograd.Function):
    """An autograd function that sweeps over whole matrices, in forward and in backward."""

    @staticmethod
    def vmap(*_: Any) -> None:
        """PyTorch calls it where an argument is batched."""
        raise RuntimeError(_NO_VMAP)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """No autocast, which the meta device doesn't have; where there is none, as most often, it takes no time."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def registered_op(name: str, schema: str | None = None) -> "Callable[[Callable[..., Any]], CustomOpDef]":
    """``torch.library.custom_op`` for a function that changes none of its arguments; no schema: of its annotations."""

    def register(function: Callable[..., Any]) -> "CustomOpDef":
        annotations: dict[str, Any] = function.__annotations__
        for key, kind in annotations.items():
            if typing.get_origin(kind) is Sequence:  # PyTorch 2.6 makes a schema of typing's alone
                annotations[key] = typing.Sequence[typing.get_args(kind)]  # type: ignore[misc]
        return torch.library.custom_op(name, function, mutates_args=(), schema=schema)

    return register


def like_first(first: Tensor, *rest: object) -> Tensor:
    """Memory for one result of the shape and type of the first argument."""
    return torch.empty_like(first, memory_format=torch.contiguous_format)


def op_in_graphs(name: str, fake: Callable[..., Any] = like_first) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that compiled graphs and ``torch.func`` call as an op; ``fake``: its results without values."""

    def register(function: Callable[P, R]) -> Callable[P, R]:
        registered_op(f"robustdml_ops::{name}")(function).register_fake(fake)
        op: Any = getattr(torch.ops.robustdml_ops, name).default  # which PyTorch's compiler knows in any closure

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            like: Any = args[0]
            result: R = op(*args, **kwargs) if in_registry(like) else function(*args, **kwargs)
            return result

        return call

    return register


def refuse_compiled_transform() -> None:
    """Refuse to be traced in a transform of ``torch.func``: no leaf says there that it wants a gradient."""
    if torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        _raise_while_tracing()


def _raise_while_tracing() -> None:
    """An error of a function of constant result, which the compiler calls. It would go on after one that it traces."""
    raise RuntimeError(
        "torch.compile of a transform of torch.func over a loss or op of this package gives no gradient: take "
        "torch.compile of a step with backward(), or torch.func without the compiler"
    )


# As torch.compiler.assume_constant_result does, which would import the compiler now.
_raise_while_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def apply_function(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply(*arguments)``, in eager mode without what PyTorch does for defaults and dead wrappers: 30 µs."""
    like = next(argument for argument in arguments if isinstance(argument, Tensor))
    wanted = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
    refuse_compiled_transform()
    if has_no_values(like) and not wanted:
        # PyTorch's compiler would pass a context to a forward that takes any number of arguments, and has none.
        return function.forward(*_without_twins(arguments))
    if not in_eager_mode(like):
        return function.apply(*_without_twins(arguments))  # type: ignore[no-untyped-call]
    if not torch.is_grad_enabled():
        return function.forward(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def _without_twins(arguments: Sequence[Any]) -> list[Any]:
    """A view in place of a tensor that is there already: PyTorch's compiler takes no tensor twice."""
    seen: list[Any] = []
    for argument in arguments:
        twin = isinstance(argument, Tensor) and any(argument is other for other in seen)
        seen.append(argument.view_as(argument) if twin else argument)
    return seen


def compute_dtype(embeddings: Tensor, proxies: Tensor) -> torch.dtype:
    """float64 where either input is, else float32: bfloat16 cosines would cost 2⁻⁹·α in the exponent."""
    return torch.float64 if torch.float64 in (embeddings.dtype, proxies.dtype) else torch.float32


def operand_dtype(compute: torch.dtype, *matrices: Tensor, autocast: bool = False, lanes: bool = False) -> torch.dtype:
    """Type of the products' operands: bfloat16 where a GPU is given half precision alone, else ``compute``.

    float16, too, becomes bfloat16: gradients of similarities are of size α/C, with 10⁶ classes below float16's range.
    ``autocast``: bfloat16 under autocast, too. Decided in forward, as backward runs outside autocast.
    ``lanes``: bfloat16 on a CPU, too, whose lanes then multiply it if the processor does.
    """
    device = matrices[0].device
    half = all(m.dtype in (torch.bfloat16, torch.float16) for m in matrices)
    if autocast and device.type != "meta":  # which has no autocast
        half = half or torch.is_autocast_enabled(device.type)
    can = (lanes and device.type == "cpu") or multiplies_bfloat16(device)
    return torch.bfloat16 if half and compute == torch.float32 and can else compute


def product_dtype(operand: torch.dtype, compute: torch.dtype, device: torch.device) -> torch.dtype:
    """Type in which PyTorch and Triton multiply: ``compute`` on a CPU, whose lanes alone multiply bfloat16."""
    return operand if operand == compute or multiplies_bfloat16(device) else compute


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether operands may be bfloat16: on CUDA devices whose tensor cores take them, from PyTorch 2.10 on."""
    if device.type != "cuda" or not ADDS_HALF_PRODUCTS:
        return False
    return torch.version.hip is not None or torch.cuda.get_device_properties(device).major >= 8


def preference(device: torch.device) -> tuple[str, ...]:
    """The backends that may serve ``device``, fastest first. docs/design.md has the order."""
    return card(device).backends if device.type == "cuda" else PREFERENCE.get(device.type, ("eager",))


def choose(table: Mapping[str, BackendT], backend: str | None, device: torch.device, dtype: torch.dtype) -> BackendT:
    """Return the backend that serves tensors on ``device`` with compute type ``dtype``."""
    refuse_tracing()
    explicit = backend not in (None, "auto")
    name = backend if explicit else os.environ.get("ROBUSTDML_BACKEND", "auto")
    assert name is not None
    if name != "auto" and name not in UNAVAILABLE:
        raise ValueError(f"backend={name!r}: expected one of {', '.join(UNAVAILABLE)} or auto")
    if name in table or explicit:
        reason = _refusal(table, name, device, dtype) if name in table else f"it has {' and '.join(table)} alone"
        if reason is not None:
            raise RuntimeError(f"backend={name!r} can't run here: {reason}. Use backend='auto' to take what can.")
        return table[name]
    for candidate in preference(device):
        if candidate not in table:
            continue
        reason = _refusal(table, candidate, device, dtype)
        if reason is None:
            break
        _tell_once(f"robustdml_ops: {candidate} can't serve {device.type}: {reason}")
    return table[candidate]


def _refusal(table: Mapping[str, object], name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the backend can't serve, or None."""
    reason = UNAVAILABLE[name](device, dtype)
    return self_check.verdict(table, name, device) if reason is None and device.type in self_check.CHECKED else reason


def passes_self_check(steps: Mapping[str, object], device: torch.device, kind: str = "planned") -> bool:
    """Whether steps of Triton agree with float64 on ``device``; ``steps``: the table of their self-check."""
    reason = self_check.verdict(steps, "triton", device) if device.type in self_check.CHECKED else None
    if reason is not None:
        _tell_once(f"robustdml_ops: {kind} steps can't serve {device.type}: {reason}")
    return reason is None


@cache
def _tell_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
