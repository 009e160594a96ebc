"""Launches of planned steps: a compiled kernel is held and called without Triton's binder and caches."""

from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import triton_device

# Versions of Triton whose ``CompiledKernel.run`` takes the arguments below, and which specialise on ``kind_of``.
KNOWN = ((3, 6), (3, 9))


class Launch:
    """A kernel, its grid and the arguments that a plan knows; a call brings the tensors, and numbers that change.

    Parameters
    ----------
    kernel : JITFunction
        The kernel; in Triton's interpreter a Python function.
    grid : tuple of int
        Numbers of programs, up to three.
    varying : sequence of str
        Arguments that each call brings, in its order: tensors, None or integers.
    fixed : dict
        All other arguments of the kernel, and the options of the launch, such as ``num_warps``.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], varying: Sequence[str], fixed: dict[str, Any]) -> None:
        self.kernel, self.grid, self.varying, self.fixed = kernel, grid, tuple(varying), fixed
        self._held: dict[Any, Any] = {}
        self._direct = is_known(kernel)
        if self._direct:
            names, unspecialised = list(kernel.arg_names), {p.name for p in kernel.params if p.do_not_specialize}
            self._places = [names.index(name) for name in self.varying]
            self._plain = [name in unspecialised for name in self.varying]
            self._template = [fixed.get(name) for name in names]
            self._whole_grid = (*grid, 1, 1)[:3]

    def __repr__(self) -> str:
        return f"Launch({self.kernel.__name__}, grid={self.grid}, {self.fixed})"

    def __call__(self, *values: Any) -> None:
        """Launch on the current device and stream, with ``values`` of the varying arguments."""
        if not self._direct or _hooked(self.kernel):
            self.kernel[self.grid](**self.fixed, **dict(zip(self.varying, values, strict=True)))
            return
        from triton.runtime import driver

        device = driver.active.get_current_device()
        key = (device, *map(kind_of, values, self._plain))
        compiled = self._held.get(key)
        if compiled is None:
            named = {**self.fixed, **dict(zip(self.varying, values, strict=True))}
            compiled = self._held[key] = self.kernel.run(grid=self.grid, warmup=True, **named)
        arguments = self._template.copy()
        for place, value in zip(self._places, values, strict=True):
            arguments[place] = value
        stream = driver.active.get_current_stream(device)
        run = compiled.run  # loads the kernel: only then there is a function
        run(*self._whole_grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *arguments)


def launch_with_scratch(launch: Launch, *values: Any) -> None:
    """Launch a kernel that makes tensor descriptors, for which Triton asks the caller for memory."""
    from triton import set_allocator

    def run() -> None:
        set_allocator(_scratch)
        launch(*values)

    copy_context().run(run)  # which leaves the allocator of the caller's own kernels


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    """Memory of the current stream, which later work alone takes over."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def kind_of(value: Any, plain: bool = False) -> Any:
    """What Triton compiles an argument for; ``plain``: the kernel asks not to be specialised on its value."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if type(value) is not int:
        raise TypeError(f"an argument that varies must be a tensor, None or an integer, got {value!r}")
    size = 32 if -(2**31) <= value < 2**31 else 64 if value < 2**63 else -64
    return (size,) if plain else (size, value == 1, value % 16 == 0)


def is_known(kernel: Any) -> bool:
    """Whether ``kernel`` is compiled by a Triton whose launches are known here."""
    from triton.runtime.jit import JITFunction

    return type(kernel) is JITFunction and triton_device._version() in KNOWN and torch.version.hip is None


def _hooked(kernel: Any) -> bool:
    """Whether somebody looks on, such as a profiler: Triton itself then launches."""
    from triton import knobs

    runtime = knobs.runtime
    hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    stages = getattr(runtime, "add_stages_inspection_hook", None)
    calls = [hook for hook in hooks if hook is not None and getattr(hook, "calls", True)]
    return bool(calls or kernel.pre_run_hooks or stages is not None or runtime.jit_cache_hook is not None)
