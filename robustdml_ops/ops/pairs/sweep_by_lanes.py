"""Whole sweeps over pairs in one call of the native module: each thread of the CPU takes chunks of rows on its own."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.lanes import matrix_product, set_threads, sweep_fields
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.ops.pairs.native import hinge_settings, lse_settings, native_chunk
from robustdml_ops.ops.pairs.problem import PairBuffers, PairHingeProblem, PairLSEProblem, PairProblem

# Rows of S with more candidates fit no core's cache: then all threads share a chunk.
MOST_CANDIDATES = 16384


def lse_by_lanes(similarities: Similarities, problem: PairLSEProblem, buffers: PairBuffers) -> None:
    """Anchors are the rows of ``similarities``, candidates the batch."""
    suffix = module.SUFFIX[similarities.compute]
    settings, lanes = lse_settings(problem, similarities.compute), _lanes(similarities)
    if getattr(module.library, f"pair_lse_sweep_{suffix}")(_whole(problem, buffers), settings, lanes):
        similarities.check_proxy_gradients()


def hinge_by_lanes(
    similarities: Similarities, problem: PairHingeProblem, buffers: PairBuffers, candidate_scale: Tensor
) -> None:
    """Candidates are the rows, anchors the batch; 1 / |candidate| goes into ``candidate_scale`` (m,)."""
    suffix = module.SUFFIX[similarities.compute]
    settings = hinge_settings(problem, similarities.X, buffers.counts, buffers.rows)
    sweep, whole = getattr(module.library, f"pair_hinge_sweep_{suffix}"), _whole(problem, buffers)
    if sweep(whole, settings, _lanes(similarities), candidate_scale.data_ptr()):
        similarities.check_proxy_gradients()


def symmetric_lanes_serve(anchors: Tensor, dtype: torch.dtype, operand: torch.dtype) -> bool:
    """Whether :func:`symmetric_by_lanes` multiplies such a batch."""
    return anchors.device.type == "cpu" and operand == dtype and matrix_product(dtype) != 0


def symmetric_by_lanes(U: Tensor, S: Tensor, dU: Tensor | None, problem: PairProblem, buffers: PairBuffers) -> None:
    """A batch with itself: unit rows U (n, D), buffer S (n, n) for the cosines; out: dU = dL/dU."""
    (n, D), suffix = U.shape, module.SUFFIX[S.dtype]
    settings: Any
    if isinstance(problem, PairLSEProblem):
        name, settings = "lse", lse_settings(problem, S.dtype)
    else:
        name, settings = "hinge", hinge_settings(problem, U, buffers.counts, buffers.rows)
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
    whole = _whole(problem, buffers, S.data_ptr())
    getattr(module.library, f"pair_{name}_symmetric_{suffix}")(whole, settings, batch)


def _whole(problem: PairProblem, buffers: PairBuffers, S: int = 0) -> Any:
    """All anchors."""
    itself = 0 if problem.sets.itself else -1
    kind = f"PairChunk_{module.SUFFIX[buffers.positive.dtype]}"
    return native_chunk(kind, buffers, *problem.sets.narrow, itself, S)


def _lanes(similarities: Similarities) -> Any:
    return getattr(module.library, f"Sweep_{module.SUFFIX[similarities.compute]}")(**sweep_fields(similarities))
