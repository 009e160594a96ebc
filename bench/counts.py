"""Counts of one step: what Python and PyTorch do on the host above the kernels."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import robustdml_ops

LIBRARY, BENCH = (Path(module).resolve().parent for module in (robustdml_ops.__file__, __file__))


@dataclass
class Counts:
    """Of one step, forward and backward, without what ``bench`` itself calls."""

    functions: int = 0  # Python functions entered, PyTorch's and the standard library's, too
    builtins: int = (
        0  # functions and methods of PyTorch in C that Python calls by name; operators and attributes are not
    )
    ops: int | None = None  # operations that pass PyTorch's dispatcher, whoever calls them; None: not counted
    files: set[str] = field(default_factory=set)  # of the library, entered


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def counted(step: Callable[[], object], compiled: bool = False) -> Counts:
    """Run ``step`` twice: PyTorch's dispatcher is watched by Python, whose functions would count.

    Where the dispatcher is watched, ``compiled`` code does not run, and its operations are not counted.
    """
    found = Counts()

    def note(frame: Any, event: str, called: Any) -> None:
        file = frame.f_code.co_filename
        if BENCH in Path(file).parents:
            return
        if event == "call":
            found.functions += 1
            if file.startswith(f"{LIBRARY}/"):
                found.files.add(file.removeprefix(f"{LIBRARY}/"))
        elif event == "c_call" and _of_torch(called):
            found.builtins += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    if not compiled:
        with _Dispatched() as dispatched:
            step()
        found.ops = dispatched.count
    return found


def _of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Tensor) or (isinstance(owner, type) and issubclass(owner, torch._C._FunctionBase)):
        return True
    named = getattr(owner, "__module__", None) or getattr(function, "__module__", None) or ""
    return str(named).startswith("torch") or str(getattr(owner, "__name__", "")).startswith("torch")


@contextmanager
def stand_ins(rows: int) -> Iterator[list[str]]:
    """The way to a GPU on small tensors of the CPU: Triton serves them in chunks of ``rows``, and no kernel runs.

    Yields the names of the kernels that would have been launched. Values that only a CPU looks at are not looked at.
    """
    from triton.runtime.jit import JITFunction

    from robustdml_ops.backends import cards, dispatch, triton_launch
    from robustdml_ops.engine import gpu_plan, similarity_chunks
    from tests.launches import everywhere

    launched: list[str] = []

    def launch(kernel: Any, *arguments: Any, **named: Any) -> None:
        launched.append(getattr(kernel, "__name__", str(kernel)))

    def launch_held(held: triton_launch.Launch, *values: Any) -> None:
        launched.append(held.kernel.__name__)

    nothing, yes = (lambda *_, **__: None), (lambda *_: True)
    with (
        mock.patch.object(JITFunction, "run", launch),
        mock.patch.object(triton_launch.Launch, "__call__", launch_held),
        mock.patch.object(gpu_plan, "check_label_range", nothing),
        mock.patch.dict(dispatch.UNAVAILABLE, triton=nothing),
        mock.patch.dict(dispatch.PREFERENCE, cpu=("triton", "eager")),
        mock.patch.multiple(similarity_chunks, memory=lambda _: 80 << 30),
        mock.patch.multiple(cards, architecture=lambda _: cards.DEFAULT),
        everywhere(chunk_rows=lambda *_: rows, bytes_to_save=lambda _: 80 << 25, all_finite=yes, all_within_reach=yes),
        everywhere(check_finite_rows=nothing, check_finite_proxies=nothing),
    ):
        yield launched
