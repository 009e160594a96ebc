"""The anchor sweep a chunk of proxies at a time, on any backend: product, epilogue, gradients of the chunk."""

import torch
from torch import Tensor

from robustdml_ops.engine.similarity_chunks import Similarities, slice_of
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorChunk, AnchorProblem, SweepResult


def sweep_by_chunks(
    similarities: Similarities,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    result: SweepResult,
    gradients: bool,
) -> None:
    """Fill the tensors that ``result`` and ``similarities`` have."""
    C, device = similarities.count, similarities.X.device
    lse_positive, lse_negative, block = result.lse_positive, result.lse_negative, C
    if lse_positive is None or lse_negative is None:
        # Summed many chunks at a time, so that a sum costs no launch per chunk and little memory per class.
        block = min(C, similarities.rows * max(1, _summed(device) // similarities.rows))
        lse_positive, lse_negative = similarities.X.new_empty((2, block), dtype=similarities.compute)
    for chunk in similarities:
        place = chunk.first % block
        end = place + len(chunk.S)
        factors = upstream if gradients else None
        backend.anchor_lse(
            AnchorChunk(
                S=chunk.S,
                first=chunk.first,
                upstream_positive=factors and slice_of(factors[0], chunk.first, chunk.last),
                upstream_negative=factors and slice_of(factors[1], chunk.first, chunk.last),
                lse_positive=lse_positive[place:end],
                lse_negative=lse_negative[place:end],
                dpositive_bias=result.dpositive_bias,
                dnegative_bias=result.dnegative_bias,
                scale=chunk.scale,
                dS=chunk.dS,
            ),
            problem,
        )
        if upstream is not None and result.total is not None and (chunk.last == C or end == block):
            for factor, value in zip(upstream, (lse_positive[:end], lse_negative[:end]), strict=True):
                factor = slice_of(factor, chunk.first - place, chunk.last)
                result.total += (factor * value).sum(dtype=torch.float64)
        similarities.backward(chunk)


def _summed(device: torch.device) -> int:
    """Log-sum-exps that are summed at a time: half a megabyte of them, 32 on a GPU, for which each sum is a launch."""
    return 1 << 16 if device.type == "cpu" else 1 << 22
