"""The class log-sum-exp of a chunk in the native module."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.classes.problem import ClassBackend, ClassProblem, ClassSums, ClassUpstream


class NativeClasses(NativeRows, ClassBackend):
    """On the CPU and on CUDA devices."""

    def class_lse(self, chunk: Chunk, problem: ClassProblem, sums: ClassSums) -> None:
        _epilogue("class_lse", chunk, problem, vars(sums))

    def class_lse_backward(self, chunk: Chunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        _epilogue("class_lse_backward", chunk, problem, vars(upstream))


def _epilogue(name: str, chunk: Chunk, problem: ClassProblem, tensors: Mapping[str, Tensor]) -> None:
    S, classes = chunk.S, problem.classes(chunk)
    if not module.on_gpu(S):
        call(name, problem, classes, tensors, S, chunk.scale, threads=torch.get_num_threads())
        return
    # Enough slices of the classes to fill a device, whatever the number of columns.
    parts = max(1, min(64, 131072 // S.shape[1]))
    if name == "class_lse":
        tensors = {**tensors, "partials": S.new_empty((parts, 2, S.shape[1]))}
    with module.current_stream(S.device) as stream:
        call(f"{name}_cuda", problem, classes, tensors, S, parts=parts, stream=stream)


def call(
    name: str,
    problem: ClassProblem,
    classes: tuple[int, int],
    tensors: Mapping[str, Tensor],
    S: Tensor | None = None,
    scale: Tensor | None = None,
    **arguments: Any,
) -> Any:
    """The function ``name`` of the native module, of the classes from the first to before the last of ``classes``."""
    first, last = classes
    suffix, labels = module.SUFFIX[problem.scale.dtype], problem.labels
    chunk = getattr(module.library, f"ClassChunk_{suffix}")(
        classes=last - first,
        centers=problem.centers,
        B=len(labels.labels),
        pooling=problem.pooling,
        **module.addresses({"S": S, "inverse_norm": scale, **problem.arguments(first, last)}),
    )
    given: dict[str, Any] = {**tensors, "first_label": first}
    if name.endswith("_cuda"):
        given["labels"] = labels.labels
    else:
        given["sorted_labels"], given["order"] = labels.by_class()
    return getattr(module.library, f"{name}_{suffix}")(chunk, **module.addresses(given), **arguments)
