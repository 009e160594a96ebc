"""Whole sweeps over pairs in one call of the native module: each thread of the CPU takes chunks of rows on its own."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.lanes import matrix_product, set_threads, sweep_fields
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.ops.pairs.native import native_chunk, settings_of
from robustdml_ops.ops.pairs.problem import PairBuffers, PairProblem

# Rows of S with more candidates fit no core's cache: then all threads share a chunk.
MOST_CANDIDATES = 16384


def sweep_by_lanes(
    similarities: Similarities, problem: PairProblem, buffers: PairBuffers, candidate_scale: Tensor | None = None
) -> None:
    """Anchors are the rows of ``similarities`` and candidates the batch; of hinges it is the other way round.

    1 / |candidate| of hinges go into ``candidate_scale`` (m,).
    """
    suffix = module.SUFFIX[similarities.compute]
    name, settings = settings_of(problem, similarities.X, buffers)
    lanes = getattr(module.library, f"Sweep_{suffix}")(**sweep_fields(similarities))
    scale = () if candidate_scale is None else (candidate_scale.data_ptr(),)
    if getattr(module.library, f"{name}_sweep_{suffix}")(_whole(problem, buffers), settings, lanes, *scale):
        similarities.check_proxy_gradients()


def symmetric_lanes_serve(anchors: Tensor, dtype: torch.dtype, operand: torch.dtype) -> bool:
    """Whether :func:`symmetric_by_lanes` multiplies such a batch."""
    return anchors.device.type == "cpu" and operand == dtype and matrix_product(dtype) != 0


def symmetric_by_lanes(U: Tensor, S: Tensor, dU: Tensor | None, problem: PairProblem, buffers: PairBuffers) -> None:
    """A batch with itself: unit rows U (n, D), buffer S (n, n) for the cosines; out: dU = dL/dU."""
    (n, D), suffix = U.shape, module.SUFFIX[S.dtype]
    name, settings = settings_of(problem, U, buffers)
    batch = getattr(module.library, f"Batch_{suffix}")(
        gemm=matrix_product(S.dtype),
        set_threads=set_threads(),
        U=U.data_ptr(),
        n=n,
        D=D,
        S=S.data_ptr(),
        dU=module.address(dU),
        average=problem.average,
        threads=torch.get_num_threads(),
    )
    getattr(module.library, f"{name}_symmetric_{suffix}")(_whole(problem, buffers, S.data_ptr()), settings, batch)


def _whole(problem: PairProblem, buffers: PairBuffers, S: int = 0) -> Any:
    """All anchors."""
    return native_chunk(buffers, problem.sets.narrow, 0 if problem.sets.itself else -1, S)
