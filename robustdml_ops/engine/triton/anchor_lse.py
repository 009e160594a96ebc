"""The anchor log-sum-exp in Triton: of a chunk, or of all proxies with their similarities in one launch."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.problem import AnchorChunk, AnchorProblem, LabelSets
from robustdml_ops.engine.triton.device import current, grid_of, is_hopper, row_stride

_OPERANDS = (torch.float32, torch.bfloat16, torch.float16)


def anchor_lse(chunk: AnchorChunk, problem: AnchorProblem) -> None:
    """Two log-sum-exps per row of ``chunk.S``, and S ← dL/dS."""
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.anchor_lse import anchor_lse as kernel

    S, sets = chunk.S, problem.sets
    c, B = S.shape
    values = None if isinstance(sets, LabelSets) else sets.values(chunk.first, chunk.last, S.dtype)
    parameters = launch.anchor_lse(B, S.dtype, values is None, values is not None and values.stride(0) == 1)
    grid = grid_of(c, parameters["BLOCK_C"])
    # Sums over anchors cross programs. Each leaves its part and torch adds the parts, in the same order every time.
    bias_partials = None if chunk.dpositive_bias is None else S.new_empty((*grid, 2, B))
    with current(S):
        kernel[grid](
            S=S,
            values=values,
            anchor_bias=None if problem.anchor_bias is None else problem.anchor_bias[chunk.first : chunk.last],
            upstream_positive=chunk.upstream_positive,
            upstream_negative=chunk.upstream_negative,
            lse_positive=chunk.lse_positive,
            lse_negative=chunk.lse_negative,
            bias_partials=bias_partials,
            c=c,
            first=chunk.first,
            upstream_positive_stride=row_stride(chunk.upstream_positive),
            upstream_negative_stride=row_stride(chunk.upstream_negative),
            ARE_LOGITS=not isinstance(sets, LabelSets) and sets.are_logits,
            **_problem_arguments(problem, values),
            **parameters,
        )
    if bias_partials is not None and chunk.dpositive_bias is not None and chunk.dnegative_bias is not None:
        dpositive_bias, dnegative_bias = bias_partials.sum(0)
        chunk.dpositive_bias += dpositive_bias
        chunk.dnegative_bias += dnegative_bias


def forward_only(X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor] | None:
    """Both log-sum-exps of every proxy from one launch; None where the kernel doesn't serve.

    It has no float64, and no confidences that are a product themselves.
    """
    sets = problem.sets
    if X.dtype not in _OPERANDS or problem.positive_bias.dtype != torch.float32:
        return None
    if not isinstance(sets, LabelSets) and sets.are_logits:
        return None
    return fused_anchor_lse(X, P, problem)


def fused_anchor_lse(X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor]:
    """Both log-sum-exps of every proxy in one launch; nothing else is written.

    Parameters
    ----------
    X : Tensor
        (B, D) unit embeddings in the operand type: float32, bfloat16 or float16; contiguous.
    P : Tensor
        (C, D) proxies of any scale and floating type. They are normalised in float32 and then rounded to the operand
        type, as the sweep does. Products accumulate in float32; float32 operands are rounded to TF32 unless
        ``torch.get_float32_matmul_precision()`` is ``"highest"``.
    problem : AnchorProblem
        Labels or dense confidences, in float32.

    Returns
    -------
    lse_positive, lse_negative : Tensor
        (C,) float32.
    """
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.fused_anchor_lse import fused_anchor_lse as kernel

    (B, D), C, sets = X.shape, len(P), problem.sets
    # The confidences as they are: a copy in the compute type would be of size B×C.
    values = None if isinstance(sets, LabelSets) or sets.confidences is None else sets.confidences.t()
    input_precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    parameters = launch.fused_anchor_lse(B, D, X.dtype, values is None, input_precision, is_hopper(X))
    lse_positive, lse_negative = problem.positive_bias.new_empty((2, C))
    with current(X):
        kernel[grid_of(C, parameters["BLOCK_C"])](
            X=X,
            P=P,
            values=values,
            anchor_bias=problem.anchor_bias,
            lse_positive=lse_positive,
            lse_negative=lse_negative,
            C=C,
            row_stride=P.stride(0),
            column_stride=P.stride(1),
            D=D,
            **_problem_arguments(problem, values),
            **parameters,
        )
    return lse_positive, lse_negative


def _problem_arguments(problem: AnchorProblem, values: Tensor | None) -> dict[str, Any]:
    """Arguments that both anchor kernels take; what labels don't need is 0."""
    sets = problem.sets
    labels, beta, threshold = (
        (sets.labels, 0.0, 0.0) if isinstance(sets, LabelSets) else (None, sets.beta, sets.threshold)
    )
    anchor_stride, candidate_stride = (0, 0) if values is None else values.stride()
    return {
        "labels": labels,
        "beta": float(beta),
        "threshold": float(threshold),
        "anchor_stride": anchor_stride,
        "candidate_stride": candidate_stride,
        "positive_bias": problem.positive_bias,
        "negative_bias": problem.negative_bias,
        "alpha": float(problem.alpha),
        "B": len(problem.positive_bias),
    }
