"""The sweep: everything of size B×C is made a chunk of classes at a time, and dies in cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml_ops.engine.chunks import chunk_rows
from robustdml_ops.engine.dispatch import Epilogue
from robustdml_ops.engine.gemm import accumulate, product
from robustdml_ops.engine.problem import AnchorChunk, AnchorProblem


@dataclass(frozen=True)
class Wanted:
    """Which results a sweep is asked for."""

    lse: bool = False  # per anchor, (C,) each; otherwise only their weighted sum
    embeddings: bool = False
    proxies: bool = False
    biases: bool = False

    @classmethod
    def of(cls, inputs: Sequence[Tensor | None]) -> "Wanted":
        """What autograd needs of (embeddings, proxies, positive bias, negative bias, anchor bias)."""
        needs = [tensor is not None and tensor.requires_grad for tensor in inputs]
        return cls(embeddings=needs[0], proxies=needs[1], biases=needs[2] or needs[3], lse=needs[4])

    @property
    def gradients(self) -> bool:
        """Whether any gradient is asked for."""
        return self.embeddings or self.proxies or self.biases


@dataclass
class SweepResult:
    """What a sweep found; None where it was not asked."""

    total: Tensor | None = None  # () float64: Σ_p upstream · log-sum-exp
    lse_positive: Tensor | None = None  # (C,)
    lse_negative: Tensor | None = None  # (C,)
    dembeddings: Tensor | None = None  # (B, D), compute type
    dproxies: Tensor | None = None  # (C, D), dtype of the proxies
    dpositive_bias: Tensor | None = None  # (B,)
    dnegative_bias: Tensor | None = None  # (B,)


def compute_dtype(embeddings: Tensor, proxies: Tensor) -> torch.dtype:
    """float64 where either input is, else float32: bfloat16 cosines would cost 2⁻⁹·α in the exponent."""
    return torch.float64 if torch.float64 in (embeddings.dtype, proxies.dtype) else torch.float32


def operand_dtype(embeddings: Tensor, compute: torch.dtype) -> torch.dtype:
    """Type of the operands of the products: bfloat16 for half precision on a CUDA device, else ``compute``.

    float16, too, becomes bfloat16. The gradient of a similarity is of size α/C: with 10⁶ classes it lies below float16's
    normal range. Beside it the coarser rounding of unit vectors weighs little: about 2⁻⁹/√D in a cosine.
    """
    if embeddings.device.type != "cuda" or compute == torch.float64:
        return compute
    half = torch.is_autocast_enabled("cuda") or embeddings.dtype in (torch.bfloat16, torch.float16)
    return torch.bfloat16 if half and torch.cuda.is_bf16_supported(including_emulation=False) else compute


def anchor_sweep(
    embeddings: Tensor,
    proxies: Tensor,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    epilogue: Epilogue,
    want: Wanted,
) -> SweepResult:
    """Log-sum-exps of every anchor, their weighted sum and its gradients, in one pass over the proxies.

    The log-sum-exp of a proxy is complete once the batch has passed it, and ``upstream`` is known beforehand: so a
    chunk is differentiated before it leaves the cache. Nothing is computed twice: 6·B·C·D flops with both gradients.

    Parameters
    ----------
    embeddings, proxies : Tensor
        (B, D) and (C, D), any scale; normalised here, chunk by chunk, so that no normalised copy of the proxies exists.
    upstream : pair of Tensor, optional
        dL/dpositive and dL/dnegative, each () or (C,) in the compute type. Needed for the total and for gradients.
    """
    compute = problem.positive_bias.dtype
    operand = operand_dtype(embeddings, compute)
    (B, D), C = embeddings.shape, len(proxies)
    new = embeddings.new_empty
    if B == 0:
        return _without_samples(embeddings, proxies, problem, upstream, want)
    result = SweepResult()
    with torch.autocast(embeddings.device.type, enabled=False):
        X, X_inverse_norm = new((B, D), dtype=operand), new(B, dtype=compute)
        epilogue.normalize_rows(embeddings, X, X_inverse_norm)

        if not want.gradients:
            lse_pair = epilogue.forward_only(X, proxies, problem)
            if lse_pair is not None:
                return _of_log_sum_exps(lse_pair, upstream, want)

        rows = min(C, chunk_rows(B + 2 * D + problem.sets.per_class, embeddings.device))
        S, U = new((rows, B), dtype=compute), new((rows, D), dtype=operand)
        U_inverse_norm = new(rows, dtype=compute)
        # Summed many chunks at a time, so that a sum costs no launch per chunk and no memory per class.
        block = C if want.lse else min(C, rows * max(1, 65536 // rows))
        lse = new((2, block), dtype=compute)
        if want.lse:
            result.lse_positive, result.lse_negative = lse
        if upstream is not None:
            result.total = new((), dtype=torch.float64).zero_()
        if want.embeddings:
            dX = new((B, D), dtype=compute).zero_()
        if want.proxies:
            result.dproxies = torch.empty_like(proxies, memory_format=torch.contiguous_format)
            in_place = result.dproxies.dtype == compute
            G = None if in_place else new((rows, D), dtype=compute)
        if want.biases:
            result.dpositive_bias, result.dnegative_bias = new(B, dtype=compute).zero_(), new(B, dtype=compute).zero_()

        for first in range(0, C, rows):
            last = min(C, first + rows)
            count, place = last - first, first % block
            V = epilogue.operand(proxies[first:last], U[:count], U_inverse_norm[:count])
            product(V, X.t(), S[:count])
            chunk = AnchorChunk(
                S=S[:count],
                first=first,
                upstream_positive=_part(upstream[0], first, last) if upstream and want.gradients else None,
                upstream_negative=_part(upstream[1], first, last) if upstream and want.gradients else None,
                lse_positive=lse[0, place : place + count],
                lse_negative=lse[1, place : place + count],
                dpositive_bias=result.dpositive_bias,
                dnegative_bias=result.dnegative_bias,
                V=V,
                inverse_norm=U_inverse_norm[:count],
            )
            epilogue.anchor_lse(chunk, problem)
            if upstream is not None and (last == C or place + count == block):
                for factor, value in zip(upstream, lse[:, : place + count], strict=True):
                    result.total += (_part(factor, first - place, last) * value).sum(dtype=torch.float64)
            if not (want.embeddings or want.proxies):
                continue
            dS = chunk.S.to(operand)
            if want.embeddings:
                accumulate(dX, dS.t(), V)
            if result.dproxies is not None:
                target = result.dproxies[first:last]
                dU = target if G is None else G[:count]
                product(dS, X, dU)
                epilogue.finish(dU, V, U_inverse_norm[:count])
                if G is not None:
                    target.copy_(dU)

        if want.embeddings:
            epilogue.normalize_rows_backward(dX, X, X_inverse_norm)
            result.dembeddings = dX
    return result


def _part(upstream: Tensor, first: int, last: int) -> Tensor:
    """The rows of a chunk; a single value serves them all."""
    return upstream if upstream.dim() == 0 else upstream[first:last]


def _of_log_sum_exps(lse: tuple[Tensor, Tensor], upstream: tuple[Tensor, Tensor] | None, want: Wanted) -> SweepResult:
    """The result where all log-sum-exps are there at once."""
    result = SweepResult()
    if want.lse:
        result.lse_positive, result.lse_negative = lse
    if upstream is not None:
        terms = [(factor * value).sum(dtype=torch.float64) for factor, value in zip(upstream, lse, strict=True)]
        result.total = terms[0] + terms[1]
    return result


def _without_samples(
    embeddings: Tensor, proxies: Tensor, problem: AnchorProblem, upstream: tuple[Tensor, Tensor] | None, want: Wanted
) -> SweepResult:
    """Every set is empty: log(1 + 0) and no gradient."""
    zeros = torch.zeros(len(proxies), dtype=problem.positive_bias.dtype, device=embeddings.device)
    return SweepResult(
        total=None if upstream is None else zeros.new_zeros((), dtype=torch.float64),
        lse_positive=zeros if want.lse else None,
        lse_negative=zeros.clone() if want.lse else None,
        dembeddings=torch.zeros_like(embeddings, dtype=zeros.dtype) if want.embeddings else None,
        dproxies=torch.zeros_like(proxies) if want.proxies else None,
        dpositive_bias=torch.zeros_like(problem.positive_bias) if want.biases else None,
        dnegative_bias=torch.zeros_like(problem.negative_bias) if want.biases else None,
    )
