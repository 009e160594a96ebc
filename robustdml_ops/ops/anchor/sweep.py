"""The sweep of the anchor log-sum-exp: what is of size B×C is made a chunk of classes at a time."""

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import without_autocast
from robustdml_ops.engine.gradient_memory import gradient_room
from robustdml_ops.engine.proxy_update import ProxyUpdate, rows_met
from robustdml_ops.engine.similarity_chunks import Similarities, count_met, part, update_without_samples
from robustdml_ops.ops.anchor.eager import EagerAnchor
from robustdml_ops.ops.anchor.native import NativeAnchor
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorChunk, AnchorProblem
from robustdml_ops.ops.anchor.result import SweepResult, Wanted
from robustdml_ops.ops.anchor.triton import TritonAnchor

BACKENDS: dict[str, AnchorBackend] = {"native": NativeAnchor(), "triton": TritonAnchor(), "eager": EagerAnchor()}


def anchor_sweep(
    embeddings: Tensor,
    proxies: Tensor,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    operand: torch.dtype,
    want: Wanted,
    update: ProxyUpdate | None = None,
) -> SweepResult:
    """Log-sum-exps of every anchor, their weighted sum and its gradients, in one pass over the proxies.

    The log-sum-exp of a proxy is complete once the batch has passed it, and ``upstream`` is known beforehand: so a
    chunk is differentiated before it leaves the cache. Nothing is computed twice: 6·B·C·D flops with both gradients.
    """
    met = rows_met(update)
    compute, C = problem.positive_bias.dtype, count_met(proxies, met)
    if len(embeddings) == 0 or C == 0:
        return _without_sums(embeddings, proxies, problem, upstream, want, update)
    with without_autocast(embeddings.device):
        similarities = Similarities(embeddings, proxies, compute, operand, backend, problem.sets.per_class, met=met)
        if not want.gradients:
            lse_pair = backend.fused_forward(similarities.X, proxies, problem)
            if lse_pair is not None:
                return _of_log_sum_exps(lse_pair, upstream, want)

        result = SweepResult()
        similarities.want_gradients(want.embeddings, want.proxies, update)
        lse = embeddings.new_empty((2, C), dtype=compute) if want.lse else None
        if lse is not None:
            result.lse_positive, result.lse_negative = lse
        if upstream is not None:
            result.total = embeddings.new_zeros((), dtype=torch.float64)
        if want.biases:
            result.dpositive_bias = torch.zeros_like(problem.positive_bias)
            result.dnegative_bias = torch.zeros_like(problem.negative_bias)
        if not backend.sweep(similarities, problem, upstream, result):
            _by_chunks(similarities, problem, upstream, backend, result, lse, want.gradients)
        result.dembeddings, result.dproxies = similarities.gradients()
    return result


def _by_chunks(
    similarities: Similarities,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    result: SweepResult,
    lse: Tensor | None,
    gradients: bool,
) -> None:
    """The sweep, a chunk at a time."""
    C, device = similarities.count, similarities.X.device
    # Summed many chunks at a time, so that a sum costs no launch per chunk and little memory per class.
    block = min(C, similarities.rows * max(1, _summed(device) // similarities.rows)) if lse is None else C
    lse = similarities.X.new_empty((2, block), dtype=similarities.compute) if lse is None else lse
    for chunk in similarities:
        place = chunk.first % block
        end = place + len(chunk.S)
        factors = upstream if gradients else None
        backend.anchor_lse(
            AnchorChunk(
                S=chunk.S,
                first=chunk.first,
                upstream_positive=factors and part(factors[0], chunk.first, chunk.last),
                upstream_negative=factors and part(factors[1], chunk.first, chunk.last),
                lse_positive=lse[0, place:end],
                lse_negative=lse[1, place:end],
                dpositive_bias=result.dpositive_bias,
                dnegative_bias=result.dnegative_bias,
                scale=chunk.scale,
                dS=chunk.dS,
            ),
            problem,
        )
        if upstream is not None and result.total is not None and (chunk.last == C or end == block):
            for factor, value in zip(upstream, lse[:, :end], strict=True):
                result.total += (part(factor, chunk.first - place, chunk.last) * value).sum(dtype=torch.float64)
        similarities.backward(chunk)


def _summed(device: torch.device) -> int:
    """Log-sum-exps that are summed at a time: half a megabyte of them, 32 on a GPU, for which each sum is a launch."""
    return 1 << 16 if device.type == "cpu" else 1 << 22


def _of_log_sum_exps(lse: tuple[Tensor, Tensor], upstream: tuple[Tensor, Tensor] | None, want: Wanted) -> SweepResult:
    """The result where all log-sum-exps are there at once."""
    result = SweepResult()
    if want.lse:
        result.lse_positive, result.lse_negative = lse
    if upstream is not None:
        terms = [(factor * value).sum(dtype=torch.float64) for factor, value in zip(upstream, lse, strict=True)]
        result.total = terms[0] + terms[1]
    return result


def _without_sums(
    embeddings: Tensor,
    proxies: Tensor,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    want: Wanted,
    update: ProxyUpdate | None,
) -> SweepResult:
    """Without samples every set is empty: log(1 + 0). Without them, or without proxies, there is no gradient."""
    if update is not None and want.proxies:
        update_without_samples(proxies, update)
    C = count_met(proxies, rows_met(update))
    zeros = torch.zeros(C, dtype=problem.positive_bias.dtype, device=embeddings.device)
    return SweepResult(
        total=None if upstream is None else zeros.new_zeros((), dtype=torch.float64),
        lse_positive=zeros if want.lse else None,
        lse_negative=zeros.clone() if want.lse else None,
        dembeddings=torch.zeros_like(embeddings, dtype=zeros.dtype) if want.embeddings else None,
        dproxies=gradient_room(proxies).zero_() if want.proxies and update is None else None,
        dpositive_bias=torch.zeros_like(problem.positive_bias) if want.biases else None,
        dnegative_bias=torch.zeros_like(problem.negative_bias) if want.biases else None,
    )
