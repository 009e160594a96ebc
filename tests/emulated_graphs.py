"""CUDA graphs on the CPU: a capture notes operations of PyTorch and kernels of Triton; a replay repeats them in place.

As on a GPU, a capture computes nothing, memory keeps its addresses and holds what the last replay wrote, and reading a
number back is an error.
"""

import contextlib
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from robustdml_ops.backends import native_module
from robustdml_ops.losses import recorded_step


def tensors_of(value):
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


class Graph:
    """Operations in their order."""

    def __init__(self):
        self.operations = []

    def replay(self):
        assert self.operations
        for function, arguments, named, made in self.operations:
            with torch.no_grad(), _disable_current_modes():
                found = function(*arguments, **named)
                for mine, new in zip(tensors_of(made), tensors_of(found), strict=True):
                    if mine.data_ptr() != new.data_ptr():
                        mine.copy_(new)


class Capture(TorchDispatchMode):
    """Note each operation, with its own tensors; ``modes`` are those of all captures."""

    modes: list[str] = []  # noqa: RUF012
    open = 0

    def __init__(self, graph, pool, stream, capture_error_mode):
        super().__init__()
        self.graph, self.known = graph, {}
        self.modes.append(capture_error_mode)

    def __enter__(self):
        self.patches = contextlib.ExitStack()
        with contextlib.suppress(ImportError):
            from triton.runtime import interpreter

            run = interpreter.GridExecutor.__call__

            def note(executor, *arguments, **named):
                named.pop("warmup", None)
                self.graph.operations.append((run, (executor, *arguments), named, None))
                with _disable_current_modes():
                    run(executor, *arguments, **named)

            self.patches.enter_context(mock.patch.object(interpreter.GridExecutor, "__call__", note))
        Capture.open += 1
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.patches.close()
        Capture.open -= 1
        for storage in self.known.values():  # what has been computed is not there
            if storage is not None:
                storage.fill_(0xFF)  # NaN, or −1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.overloadpacket.__name__ in ("nonzero", "masked_select"):
            raise RuntimeError("operation not permitted when stream is capturing")
        for tensor in tensors_of((args, kwargs)):
            self.known.setdefault(tensor.untyped_storage()._cdata, None)  # was there before
        made = function(*args, **kwargs)
        for tensor in tensors_of(made):
            storage = tensor.untyped_storage()
            self.known.setdefault(storage._cdata, torch.empty(0, dtype=torch.uint8).set_(storage))
        self.graph.operations.append((function, args, kwargs, made))
        return made


class Stream:
    """There is one order of work on the CPU."""

    def __init__(self, *_):
        pass

    def wait_stream(self, _):
        pass


@contextlib.contextmanager
def emulated_graphs():
    """``loss.recorded`` takes tensors of the CPU; yields the error modes of the captures."""
    nothing = contextlib.nullcontext
    torch_cuda = {"Stream": Stream, "CUDAGraph": Graph, "graph": Capture, "current_stream": Stream}
    torch_cuda |= {"stream": nothing, "device": nothing, "graph_pool_handle": lambda: "a pool"}
    Capture.modes.clear()
    with (
        mock.patch.multiple(torch.cuda, **torch_cuda),
        mock.patch.multiple(recorded_step, _records=lambda _: True, is_recorded=lambda _: Capture.open > 0),
        # Its calls are no operations of PyTorch, and would not be noted.
        mock.patch.multiple(native_module, library=None, _REASON="left out", matrix_product=lambda _: 0, create=True),
    ):
        yield Capture.modes
