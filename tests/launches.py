"""The launches of a step on a GPU, and the bytes that they move, counted without one.

A step runs on the device "meta", where operations have shapes and no values. The registered ops step aside, Triton's
kernels are noted and not run, and chunks and types are those of a GPU with 80 GB.
"""

import contextlib
import dataclasses
import sys
from collections import Counter
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")
from triton.runtime.jit import JITFunction

from robustdml_ops.backends import cards, triton_launch
from robustdml_ops.backends import dispatch as backends
from robustdml_ops.engine import similarity_chunks as chunks

CUDA = torch.device("cuda")
# These read a value or have a shape that depends on values: the host would wait for the device.
READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "unique_dim"}
READS |= {"_unique", "_unique2", "unique_consecutive", "bincount", "histc", "repeat_interleave"}
# Allocations, and what stays on the host.
NO_LAUNCH = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "promote_types", "scalar_tensor"}
chunk_rows, bytes_to_save = chunks.chunk_rows, chunks.bytes_to_save


class Launches(TorchDispatchMode):
    """Operations of PyTorch on the way to the device, by name."""

    def __init__(self):
        super().__init__()
        self.kernels: Counter[str] = Counter()  # Triton's
        self.operations: Counter[str] = Counter()  # PyTorch's that compute or copy
        self.bytes = 0  # read from memory and written to it, by shapes: each matrix of a launch once
        self.calls = 0  # of PyTorch's dispatcher: views and allocations, too
        self.sequence: list[str] = []  # each launch with its numbers, and the tensors' shapes and types

    @property
    def total(self):
        """The number of launches."""
        return sum((self.kernels + self.operations).values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        name, kwargs = function.overloadpacket.__name__, kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        masks = name in ("index", "index_put_", "_index_put_impl_") and any(
            mask is not None and mask.dtype in (torch.bool, torch.uint8) for mask in args[1]
        )
        result = function(*args, **kwargs)
        devices = {tensor.device.type for tensor in tensors if tensor.dim()}
        devices |= {leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.dim()}
        waits = (name in READS or masks) and "meta" in {tensor.device.type for tensor in tensors}
        assert not waits and len(devices) < 2, f"the host waits for the device in {name}{described((args, kwargs))}"
        on_device = "meta" in devices or any(tensor.is_meta for tensor in tensors)
        if on_device:
            self.sequence.append(f"{name} {described((args, kwargs))}")
        # A number of the host, of no dimension, is computed there.
        if not function.is_view and name not in NO_LAUNCH and (on_device or not tensors):
            self.operations[name] += 1
            made = 0 if name.startswith("new_") else size(args)
            self.bytes += made + size(result) * (name not in ("copy_", "_assert_async"))
        return result


def size(value):
    """Bytes of all tensors of the device in ``value``."""
    leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_meta]
    return sum(leaf.numel() * leaf.itemsize for leaf in leaves)


def described(value):
    """Shape, type and strides of a device tensor; the value of anything else."""
    if isinstance(value, torch.Tensor):
        return (
            str(value.tolist()) if value.device.type == "cpu" else f"{value.dtype}{[*value.shape]}{[*value.stride()]}"
        )
    if isinstance(value, dict):
        return str({name: described(each) for name, each in value.items()})
    return str([described(each) for each in value]) if isinstance(value, (list, tuple)) else str(value)


@contextlib.contextmanager
def everywhere(**functions):
    """Put ``functions`` in the place of those of their name in every module of the package that has imported them."""
    with contextlib.ExitStack() as stack:
        for place, module in list(sys.modules.items()):
            for name, function in functions.items():
                if place.startswith("robustdml_ops.") and hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, function))
        yield


def fused_steps():
    """Within, all cards ask for steps that make product and exponentials in one kernel."""
    rows = {name: dataclasses.replace(row, fused_steps=True) for name, row in cards.CARDS.items()}
    return mock.patch.dict(cards.CARDS, rows)


@contextlib.contextmanager
def counted():
    """Count what runs within, on tensors of "meta"."""
    launches = Launches()

    def of_a_card(classes, per_class, device, *temporaries):
        return chunk_rows(classes, per_class, CUDA, *temporaries)

    def note(kernel, *arguments, grid, warmup, **named):
        launches.kernels[kernel.__name__] += 1
        if kernel.__name__ in ("complete_terms", "finish_samples"):  # a row of P and an element of E for each sample
            named = {**named, "P": named["X"], "E": None}
        if kernel.__name__ == "add_labels":  # a row of G for each sample, read and written
            named = {**named, "G": (named["weighted"], named["weighted"]), "E": None}
        if kernel.__name__ != "scale":  # most often by 1, and reads nothing
            launches.bytes += size((arguments, named))
        launches.sequence.append(f"{kernel.__name__} {grid} {described(arguments)} {described(named)}")

    with (
        mock.patch.object(JITFunction, "run", note),
        mock.patch.object(triton_launch, "is_known", return_value=False),
        mock.patch.dict(backends.UNAVAILABLE, triton=lambda *_: None),
        mock.patch.dict(backends.PREFERENCE, meta=("triton", "eager")),
        mock.patch.object(chunks, "memory", return_value=80 << 30),
        mock.patch.object(cards, "architecture", return_value=cards.DEFAULT),
        mock.patch.object(backends, "multiplies_bfloat16", return_value=True),
        mock.patch.object(torch, "autocast", return_value=contextlib.nullcontext()),  # there is none on "meta"
        everywhere(has_no_values=lambda *_: False, in_registry=lambda *_: False),
        everywhere(chunk_rows=of_a_card, bytes_to_save=lambda _: bytes_to_save(CUDA)),
        launches,
    ):
        yield launches
