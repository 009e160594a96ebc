"""The class log-sum-exp of a chunk in the native module."""

from typing import Any

import torch

from robustdml_ops.engine.class_problem import ClassChunk, ClassProblem, ClassSums, ClassUpstream
from robustdml_ops.engine.native import module


def class_lse(chunk: ClassChunk, problem: ClassProblem, sums: ClassSums) -> None:
    """Add the classes of ``chunk`` to ``sums``."""
    getattr(module.library, f"class_lse_{module.SUFFIX[chunk.S.dtype]}")(
        _arguments(chunk, problem),
        **_labels(chunk, problem),
        shift=sums.shift.data_ptr(),
        total=sums.total.data_ptr(),
        target=sums.target.data_ptr(),
        threads=torch.get_num_threads(),
    )


def class_lse_backward(chunk: ClassChunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
    """S ← dL/dS."""
    getattr(module.library, f"class_lse_backward_{module.SUFFIX[chunk.S.dtype]}")(
        _arguments(chunk, problem),
        **_labels(chunk, problem),
        lse=upstream.lse.data_ptr(),
        dlse=upstream.dlse.data_ptr(),
        dlogit=upstream.dlogit.data_ptr(),
        threads=torch.get_num_threads(),
    )


def _arguments(chunk: ClassChunk, problem: ClassProblem) -> Any:
    """``chunk`` as the native module reads it."""
    of_chunk = slice(chunk.first, chunk.first + chunk.classes(problem))
    scale = problem.scale if problem.scale.dim() == 0 else problem.scale[of_chunk]
    # Views: the problem keeps what the addresses point to alive.
    proxies = {}
    if chunk.inverse_norm is not None and not module.on_gpu(chunk.S):
        proxies = {"P": chunk.V.data_ptr(), "inverse_norm": chunk.inverse_norm.data_ptr(), "D": chunk.V.shape[1]}
    return getattr(module.library, f"ClassChunk_{module.SUFFIX[chunk.S.dtype]}")(
        S=chunk.S.data_ptr(),
        classes=chunk.classes(problem),
        centers=problem.centers,
        B=chunk.S.shape[1],
        scale=scale.data_ptr(),
        scale_stride=scale.dim(),
        bias=module.address(None if problem.bias is None else problem.bias[of_chunk]),
        pooling=problem.pooling,
        gamma=problem.gamma,
        **proxies,
    )


def _labels(chunk: ClassChunk, problem: ClassProblem) -> dict[str, int]:
    return {
        "sorted_labels": problem.labels.sorted_labels.data_ptr(),
        "order": problem.labels.order.data_ptr(),
        "first_label": chunk.first,
    }
