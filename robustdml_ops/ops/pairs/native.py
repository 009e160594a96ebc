"""The sums of a chunk of pairs in the native module."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.lanes import arguments, matrix_product, set_threads
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.engine.similarity_chunks import Similarities, row_stride
from robustdml_ops.ops.pairs.problem import (
    DistanceLimits,
    GivenRows,
    PairBackend,
    PairChunk,
    PairHingeProblem,
    PairLSEProblem,
    PairProblem,
    PairRooms,
    PairSets,
    SymmetricBatch,
)

# As cuda::Element of csrc/rows/cuda.h.
_ELEMENT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


# Rows of S with so many candidates fit no core's cache: then all threads share a chunk.
_CANDIDATES = 16384


class NativePairs(NativeRows, PairBackend):
    """On the CPU and on CUDA devices."""

    def pair_lse(self, chunk: PairChunk, problem: PairLSEProblem) -> None:
        """As :meth:`PairBackend.pair_lse`."""
        _run("pair_lse", chunk, problem.sets, _lse_settings(problem, chunk.S.dtype))

    def pair_hinge(self, chunk: PairChunk, problem: PairHingeProblem) -> None:
        """As :meth:`PairBackend.pair_hinge`."""
        assert chunk.counts is not None
        settings = _hinge_settings(problem, chunk.V, chunk.counts, chunk.rows, chunk.first)
        _run("pair_hinge", chunk, problem.sets, settings)

    def sweep(self, similarities: Similarities, problem: PairProblem, rooms: PairRooms) -> bool:
        """As :meth:`PairBackend.sweep`: by lanes, on the CPU, log-sum-exps alone."""
        if not isinstance(problem, PairLSEProblem) or len(similarities.X) > _CANDIDATES:
            return False
        lanes = arguments(similarities)
        if lanes is None:
            return False
        suffix = module.SUFFIX[similarities.compute]
        whole = _whole(problem, rooms, len(similarities.X), suffix)
        settings = _lse_settings(problem, similarities.compute)
        sweep = getattr(module.library, f"Sweep_{suffix}")(**lanes)
        if getattr(module.library, f"pair_lse_sweep_{suffix}")(whole, settings, sweep):
            similarities.check_proxy_gradients()
        return True

    def candidate_sweep(
        self, similarities: Similarities, problem: PairHingeProblem, rooms: PairRooms, candidate_scale: Tensor
    ) -> bool:
        """As :meth:`PairBackend.candidate_sweep`: by lanes, on the CPU."""
        lanes = arguments(similarities)
        if lanes is None or rooms.counts is None:
            return False
        suffix = module.SUFFIX[similarities.compute]
        whole = _whole(problem, rooms, similarities.count, suffix)
        settings = _hinge_settings(problem, similarities.X, rooms.counts, rooms.rows)
        sweep = getattr(module.library, f"Sweep_{suffix}")(**lanes)
        if getattr(module.library, f"pair_hinge_sweep_{suffix}")(whole, settings, sweep, candidate_scale.data_ptr()):
            similarities.check_proxy_gradients()
        return True

    def averages(self, anchors: Tensor, dtype: torch.dtype, operand: torch.dtype) -> bool:
        """As :meth:`PairBackend.averages`."""
        return anchors.device.type == "cpu" and operand == dtype and matrix_product(dtype) != 0

    def symmetric(self, batch: SymmetricBatch, problem: PairProblem, rooms: PairRooms) -> bool:
        """As :meth:`PairBackend.symmetric`: by lanes, on the CPU."""
        U, S, dU = batch
        if not self.averages(U, S.dtype, U.dtype):
            return False
        (n, D), suffix = U.shape, module.SUFFIX[S.dtype]
        whole = _whole(problem, rooms, n, suffix, S.data_ptr())
        name, settings = "lse", None
        if isinstance(problem, PairLSEProblem):
            settings = _lse_settings(problem, S.dtype)
        else:
            assert rooms.counts is not None
            name, settings = "hinge", _hinge_settings(problem, U, rooms.counts, rooms.rows)
        of_batch = getattr(module.library, f"Batch_{suffix}")(
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
        getattr(module.library, f"pair_{name}_symmetric_{suffix}")(whole, settings, of_batch)
        return True


def _lse_settings(problem: PairLSEProblem, dtype: torch.dtype) -> Any:
    return getattr(module.library, f"PairLSE_{module.SUFFIX[dtype]}")(
        alpha=problem.alpha,
        beta=problem.beta,
        base=problem.base,
        epsilon=problem.epsilon or 0.0,
        mining=problem.epsilon is not None,
        row_max=problem.needs_row_max(dtype),
        candidate_weights=module.address(problem.candidate_weights),
    )


def _hinge_settings(
    problem: PairHingeProblem, operands: Tensor, counts: Tensor, rows: GivenRows | None, first: int = 0
) -> Any:
    """``operands``: what the products multiply; ``counts`` and ``first`` of a chunk, ``rows`` of all."""
    dtype = torch.float64 if operands.dtype == torch.float64 else torch.float32
    return getattr(module.library, f"PairHinge_{module.SUFFIX[dtype]}")(
        positive_margin=problem.positive_margin,
        negative_margin=problem.negative_margin,
        positive_offset=problem.positive_offset,
        negative_offset=problem.negative_offset,
        euclidean=problem.euclidean,
        positive_count=counts[0].data_ptr(),
        negative_count=counts[1].data_ptr(),
        **_rows(operands, rows, first),
    )


def _rows(operands: Tensor, rows: GivenRows | None, first: int) -> dict[str, Any]:
    """What distances need."""
    if rows is None:
        return {}
    anchors, candidates = rows
    D, limits = anchors.shape[1], DistanceLimits.of(operands)
    return {
        "near": limits.near,
        "resolution": limits.resolution,
        "anchors": anchors.data_ptr() + first * D * anchors.itemsize,
        "candidates": candidates.data_ptr(),
        "D": D,
        "anchors_element": _ELEMENT[anchors.dtype],
        "candidates_element": _ELEMENT[candidates.dtype],
    }


def _whole(problem: PairProblem, rooms: PairRooms, m: int, suffix: str, S: int = 0) -> Any:
    """All anchors, as the native module reads a chunk."""
    labels, candidate_labels = problem.sets.narrow
    return getattr(module.library, f"PairChunk_{suffix}")(
        S=S,
        rows=len(rooms.positive),
        m=m,
        labels=labels.data_ptr(),
        candidate_labels=candidate_labels.data_ptr(),
        itself=0 if problem.sets.itself else -1,
        upstream_positive=module.address(rooms.upstream_positive),
        upstream_negative=module.address(rooms.upstream_negative),
        upstream_positive_stride=row_stride(rooms.upstream_positive),
        upstream_negative_stride=row_stride(rooms.upstream_negative),
        positive=rooms.positive.data_ptr(),
        negative=rooms.negative.data_ptr(),
    )


def _run(name: str, chunk: PairChunk, sets: PairSets, settings: Any) -> None:
    suffix = module.SUFFIX[chunk.S.dtype]
    if module.on_gpu(chunk.S):
        labels = sets.labels[chunk.first :]
        arguments = _arguments(chunk, f"PairChunk_cuda_{suffix}", labels, sets.candidate_labels, sets.itself)
        with module.current_stream(chunk.S.device) as stream:
            getattr(module.library, f"{name}_cuda_{suffix}")(arguments, settings, stream)
        return
    labels, candidate_labels = sets.narrow
    arguments = _arguments(
        chunk,
        f"PairChunk_{suffix}",
        labels[chunk.first :],
        candidate_labels,
        sets.itself,
        inverse_norm=module.address(chunk.scale),
    )
    getattr(module.library, f"{name}_{suffix}")(arguments, settings, torch.get_num_threads())


def _arguments(
    chunk: PairChunk, kind: str, labels: Tensor, candidate_labels: Tensor, itself: bool, **anchors: int
) -> Any:
    """``chunk`` as the native module reads it."""
    return getattr(module.library, kind)(
        S=chunk.S.data_ptr(),
        rows=chunk.S.shape[0],
        m=chunk.S.shape[1],
        labels=labels.data_ptr(),
        candidate_labels=candidate_labels.data_ptr(),
        itself=chunk.first if itself else -1,
        upstream_positive=module.address(chunk.upstream_positive),
        upstream_negative=module.address(chunk.upstream_negative),
        upstream_positive_stride=row_stride(chunk.upstream_positive),
        upstream_negative_stride=row_stride(chunk.upstream_negative),
        positive=chunk.positive.data_ptr(),
        negative=chunk.negative.data_ptr(),
        **anchors,
    )
