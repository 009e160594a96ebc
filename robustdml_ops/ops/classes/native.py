"""The class log-sum-exp of a chunk in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.ops.classes.problem import ClassBackend, ClassChunk, ClassProblem, ClassSums, ClassUpstream


class NativeClasses(NativeRows, ClassBackend):
    """On the CPU and on CUDA devices."""

    def class_lse(self, chunk: ClassChunk, problem: ClassProblem, sums: ClassSums) -> None:
        given = sum_addresses(sums)
        if module.on_gpu(chunk.S):
            slices = _slices(chunk)
            partials = chunk.S.new_empty((slices, 2, chunk.S.shape[1]))
            _call("class_lse_cuda", chunk, problem, partials=partials.data_ptr(), parts=slices, **given)
        else:
            _call("class_lse", chunk, problem, **given)

    def class_lse_backward(self, chunk: ClassChunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        given = upstream_addresses(upstream)
        if module.on_gpu(chunk.S):
            _call("class_lse_backward_cuda", chunk, problem, parts=_slices(chunk), **given)
        else:
            _call("class_lse_backward", chunk, problem, **given)


def sum_addresses(sums: ClassSums) -> dict[str, int]:
    """Arguments of the forward functions."""
    return {name: getattr(sums, name).data_ptr() for name in ("shift", "total", "target")}


def upstream_addresses(upstream: ClassUpstream) -> dict[str, int]:
    """Arguments of the backward functions."""
    return {name: getattr(upstream, name).data_ptr() for name in ("lse", "dlse", "dlogit")}


def native_chunk(problem: ClassProblem, first: int, classes: int, S: int = 0, scale: Tensor | None = None) -> Any:
    """``classes`` classes from ``first`` on as a ``ClassChunk`` of the native module."""
    return getattr(module.library, f"ClassChunk_{module.SUFFIX[problem.scale.dtype]}")(
        S=S,
        classes=classes,
        centers=problem.centers,
        B=len(problem.labels.labels),
        pooling=problem.pooling,
        inverse_norm=module.address(scale),
        **module.addresses(problem.arguments(first, first + classes)),
    )


def _call(name: str, chunk: ClassChunk, problem: ClassProblem, **arguments: int) -> None:
    function = getattr(module.library, f"{name}_{module.SUFFIX[chunk.S.dtype]}")
    labels, on_gpu = problem.labels, module.on_gpu(chunk.S)
    scale = None if on_gpu else chunk.scale
    given = native_chunk(problem, chunk.first, chunk.classes(problem), chunk.S.data_ptr(), scale)
    arguments["first_label"] = chunk.first
    if on_gpu:
        with module.current_stream(chunk.S.device) as stream:
            function(given, labels=labels.labels.data_ptr(), stream=stream, **arguments)
        return
    sorted_labels, order = labels.by_class()
    arguments |= {"sorted_labels": sorted_labels.data_ptr(), "order": order.data_ptr()}
    function(given, threads=torch.get_num_threads(), **arguments)


def _slices(chunk: ClassChunk) -> int:
    """Enough slices of the classes to fill a device, whatever the number of columns."""
    return max(1, min(64, 131072 // chunk.S.shape[1]))
