"""The class log-sum-exp of a chunk in the native module."""

from typing import Any

import torch

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.lanes import arguments
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.ops.classes.problem import ClassBackend, ClassChunk, ClassProblem, ClassSums, ClassUpstream


class NativeClasses(NativeRows, ClassBackend):
    """On the CPU and on CUDA devices."""

    def class_lse(self, chunk: ClassChunk, problem: ClassProblem, sums: ClassSums) -> None:
        """As :meth:`ClassBackend.class_lse`."""
        results = {name: getattr(sums, name).data_ptr() for name in ("shift", "total", "target")}
        if module.on_gpu(chunk.S):
            parts = _parts(chunk)
            partials = chunk.S.new_empty((parts, 2, chunk.S.shape[1]))
            _call("class_lse_cuda", chunk, problem, partials=partials.data_ptr(), parts=parts, **results)
        else:
            _call("class_lse", chunk, problem, **results)

    def class_lse_backward(self, chunk: ClassChunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        """As :meth:`ClassBackend.class_lse_backward`."""
        given = {name: getattr(upstream, name).data_ptr() for name in ("lse", "dlse", "dlogit")}
        if module.on_gpu(chunk.S):
            _call("class_lse_backward_cuda", chunk, problem, parts=_parts(chunk), **given)
        else:
            _call("class_lse_backward", chunk, problem, **given)

    def sweep(self, similarities: Similarities, problem: ClassProblem, sums: ClassSums) -> bool:
        """As :meth:`ClassBackend.sweep`: by lanes, on the CPU."""
        results = {name: getattr(sums, name).data_ptr() for name in ("shift", "total", "target")}
        return _by_lanes("class_sweep", similarities, problem, results)

    def sweep_backward(self, similarities: Similarities, problem: ClassProblem, upstream: ClassUpstream) -> bool:
        """As :meth:`ClassBackend.sweep_backward`: by lanes, on the CPU."""
        given = {name: getattr(upstream, name).data_ptr() for name in ("lse", "dlse", "dlogit")}
        return _by_lanes("class_sweep_backward", similarities, problem, given)


def _by_lanes(name: str, similarities: Similarities, problem: ClassProblem, given: dict[str, int]) -> bool:
    lanes = arguments(similarities)
    if lanes is None:
        return False
    suffix = module.SUFFIX[similarities.compute]
    sorted_labels, order = problem.labels.by_class()
    classes = similarities.count // problem.centers
    whole = getattr(module.library, f"ClassChunk_{suffix}")(
        S=0,
        classes=classes,
        centers=problem.centers,
        B=len(similarities.X),
        pooling=problem.pooling,
        **module.addresses(problem.arguments(0, classes)),
    )
    labels = {"sorted_labels": sorted_labels.data_ptr(), "order": order.data_ptr(), "first_label": 0}
    if getattr(module.library, f"{name}_{suffix}")(whole, **labels, **given, **lanes):
        similarities.check_proxy_gradients()
    return True


def _call(name: str, chunk: ClassChunk, problem: ClassProblem, **arguments: int) -> None:
    function = getattr(module.library, f"{name}_{module.SUFFIX[chunk.S.dtype]}")
    labels = problem.labels
    arguments["first_label"] = chunk.first
    if module.on_gpu(chunk.S):
        with module.current_stream(chunk.S.device) as stream:
            function(_arguments(chunk, problem), labels=labels.labels.data_ptr(), stream=stream, **arguments)
        return
    sorted_labels, order = labels.by_class()
    arguments |= {"sorted_labels": sorted_labels.data_ptr(), "order": order.data_ptr()}
    function(_arguments(chunk, problem), threads=torch.get_num_threads(), **arguments)


def _parts(chunk: ClassChunk) -> int:
    """Enough parts of the classes to fill a device, whatever the number of columns."""
    return max(1, min(64, 131072 // chunk.S.shape[1]))


def _arguments(chunk: ClassChunk, problem: ClassProblem) -> Any:
    """``chunk`` as the native module reads it."""
    classes = chunk.classes(problem)
    given = problem.arguments(chunk.first, chunk.first + classes)
    if not module.on_gpu(chunk.S):
        given["inverse_norm"] = chunk.scale
    return getattr(module.library, f"ClassChunk_{module.SUFFIX[chunk.S.dtype]}")(
        S=chunk.S.data_ptr(),
        classes=classes,
        centers=problem.centers,
        B=chunk.S.shape[1],
        pooling=problem.pooling,
        **module.addresses(given),
    )
