"""The anchor log-sum-exp of a chunk on each backend: exponents, sets, sums and their epilogues."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.dispatch import in_registry
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.op_arguments import op_options
from robustdml_ops.engine.rows.backends import NativeRows, RowsBackend, TritonRows
from robustdml_ops.engine.rows.lengths import log_one_plus_sum
from robustdml_ops.engine.similarity_chunks import Chunk, upstream_arguments


@op_options
@dataclass(frozen=True)
class ConfidenceSets:
    """X_p⁺ = {c_xp > threshold}; weight σ(β|c − threshold|); confidences as a matrix, or as factors of their logits."""

    beta: float
    threshold: float
    confidences: Tensor | None = None  # (B, C)
    hidden: Tensor | None = None  # (B, K), with weight and bias
    weight: Tensor | None = None  # (C, K)
    bias: Tensor | None = None  # (C,)

    labels_each = 1  # as of LabelSets
    weights = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The confidences, or their three factors."""
        return tuple(t for t in (self.confidences, self.hidden, self.weight, self.bias) if t is not None)

    @property
    def are_logits(self) -> bool:
        """Whether :meth:`values` still have to go through the sigmoid."""
        return self.confidences is None

    @property
    def per_class(self) -> int:
        """Elements that a class brings into the cache: its logits and its row of the weight, where there are any."""
        return 0 if self.hidden is None else sum(self.hidden.shape)

    def values(self, first: int, last: int, dtype: torch.dtype, logits: Tensor | None = None) -> Tensor:
        """Confidences, or logits, of the anchors ``first:last``: (last − first, B), any strides; into ``logits``."""
        if self.confidences is not None:
            return self.confidences[:, first:last].t().to(dtype)
        assert self.hidden is not None and self.weight is not None and self.bias is not None
        weight, bias = self.weight[first:last].to(dtype), self.bias[first:last].to(dtype)
        return torch.addmm(bias[:, None], weight, self.hidden.to(dtype).t(), out=logits)

    def extremes(self, lowest: Tensor, highest: Tensor) -> bool:
        """Write the smallest and the largest confidence of each anchor, (C,) each; False where only PyTorch can."""
        values = self.confidences
        if values is None or values.device.type != "cpu" or in_registry(values):
            return False
        if values.dtype != lowest.dtype or values.stride(1) != 1 or module.unavailable(values.device, lowest.dtype):
            return False
        module.call("column_extremes", values, values, *values.shape, values.stride(0), lowest, highest)
        return True

    def check_range(self, num_classes: int) -> None:
        """Confidences have no labels."""

    def in_place(self, dtype: torch.dtype) -> bool:
        """Whether the confidences, or the weight of their logits, can be read as they are stored."""
        if self.confidences is not None:
            return self.confidences.dtype == dtype
        assert self.weight is not None
        return self.weight.dtype == dtype and self.weight.is_contiguous()

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """All classes as arguments of the native module's sweep, where they can be read in place."""
        sets = {"logits": self.are_logits, "beta": self.beta, "threshold": self.threshold, "weight": self.weight}
        if self.confidences is not None:
            candidate_stride, anchor_stride = self.confidences.stride()
            strides = {"anchor_stride": anchor_stride, "candidate_stride": candidate_stride}
            return {**sets, **strides, "values": self.confidences, "hidden": None, "bias": None, "K": 0}
        assert self.hidden is not None and self.bias is not None
        (B, K), hidden, bias = self.hidden.shape, self.hidden.to(dtype).contiguous(), self.bias.to(dtype).contiguous()
        strides = {"anchor_stride": B, "candidate_stride": 1}
        return {**sets, **strides, "values": None, "hidden": hidden, "bias": bias, "K": K}


@op_options
@dataclass(frozen=True)
class AnchorOptions:
    """What a sweep has beside matrices and biases. Kernels have arguments of the same names, but for the sets."""

    alpha: float
    sets: LabelSets | ConfidenceSets
    drop_similar_negatives: Tensor | None = (
        None  # (B,) compute dtype, contiguous: negatives of a larger cosine are left out
    )

    def arguments(self) -> dict[str, Any]:
        """The options as arguments of all kernels."""
        own = {name: getattr(self, name) for name in self.option_names if name != "sets"}  # type: ignore[attr-defined]
        return {**own, "labels_each": self.sets.labels_each, "label_weights": self.sets.weights}


@dataclass(frozen=True)
class AnchorProblem:
    """The exponents ∓α·s + bias, with bias = α·margin + log weight, and the sets they are summed over."""

    options: AnchorOptions
    positive_bias: Tensor  # (B,) compute dtype, contiguous, as all three
    negative_bias: Tensor  # (B,) compute dtype
    anchor_bias: Tensor | None  # (C,) compute dtype, in the negative exponent only

    def arguments(self, first: int, last: int, distinct: bool = False) -> dict[str, Any]:
        """Exponents of the classes ``first:last`` for all kernels; ``distinct``: None for an equal negative bias."""
        same = distinct and self.negative_bias is self.positive_bias
        return {
            "positive_bias": self.positive_bias,
            "negative_bias": None if same else self.negative_bias,
            "anchor_bias": None if self.anchor_bias is None else self.anchor_bias[first:last],
            **self.options.arguments(),
        }

    def native_chunk(
        self,
        first: int,
        last: int,
        sums: "AnchorSums",
        row_max: bool,
        S: Tensor | None = None,
        inverse_norm: Tensor | None = None,
    ) -> Any:
        """The classes ``first:last`` as an ``AnchorChunk`` of the native module."""
        biases = {"dpositive_bias": sums.dpositive_bias, "dnegative_bias": sums.dnegative_bias}
        tensors = {"S": S, "inverse_norm": inverse_norm, **biases, **sums.arguments(), **self.arguments(first, last)}
        return getattr(module.library, f"AnchorChunk_{module.SUFFIX[self.positive_bias.dtype]}")(
            rows=last - first, B=len(self.positive_bias), row_max=row_max, **module.addresses(tensors)
        )

    @cached_property
    def needs_row_max(self) -> bool:
        """Whether an exponent can overflow, so that rows are shifted by their maximum. Reads values: CPU only."""
        largest = float(self.positive_bias.max())
        if self.negative_bias is not self.positive_bias:
            largest = max(largest, float(self.negative_bias.max()))
        if self.anchor_bias is not None:
            largest += max(0.0, float(self.anchor_bias.max()))
        largest_exponent = 85.0 if self.positive_bias.dtype == torch.float32 else 700.0
        return self.options.alpha + largest + math.log(len(self.positive_bias)) > largest_exponent


@dataclass
class AnchorSums:
    """Upstream gradients and results of a chunk's epilogue, beside dL/dS."""

    upstream: tuple[Tensor, Tensor] | None  # () or (c,) each: dL/dpositive, dL/dnegative; None: no gradients wanted
    lse_positive: Tensor | None  # (c,) out; None: not wanted, by lanes alone
    lse_negative: Tensor | None  # (c,) out
    dpositive_bias: Tensor | None  # (B,) added to; None: not wanted
    dnegative_bias: Tensor | None  # (B,) added to; None exactly when dpositive_bias is

    def arguments(self) -> dict[str, Any]:
        """All but the gradients of the biases as arguments of all backends' kernels."""
        lse = {"lse_positive": self.lse_positive, "lse_negative": self.lse_negative}
        return lse | upstream_arguments(self.upstream)


@dataclass(frozen=True)
class Wanted:
    """Which results of a sweep are wanted."""

    lse: bool = False  # per anchor, (C,) each; otherwise only their weighted sum
    embeddings: bool = False
    proxies: bool = False
    biases: bool = False

    @property
    def gradients(self) -> bool:
        """Whether any gradient is wanted."""
        return self.embeddings or self.proxies or self.biases


@dataclass
class SweepResult:
    """Results of a sweep, in the order of the autograd function's outputs; None where not wanted."""

    total: Tensor | None = None  # () float64: Σ_p upstream · log-sum-exp
    lse_positive: Tensor | None = None  # (C,)
    lse_negative: Tensor | None = None  # (C,)
    dembeddings: Tensor | None = None  # (B, D), compute type
    dproxies: Tensor | None = None  # (C, D), dtype of the proxies
    dpositive_bias: Tensor | None = None  # (B,)
    dnegative_bias: Tensor | None = None  # (B,)


class AnchorBackend(RowsBackend):
    """Epilogue of the anchor log-sum-exp on one backend."""

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        """Two log-sum-exps per row of ``chunk.S``, and dL/dS in ``chunk.dS``, or in S where there is none."""
        raise NotImplementedError


class EagerAnchor(AnchorBackend):
    """On every device, without a compiler."""

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        S = chunk.S
        assert sums.lse_positive is not None and sums.lse_negative is not None
        positive, log_weight = membership(problem.options.sets, chunk.first, chunk.last, S)
        scaled = problem.options.alpha * S
        positive_exponent = problem.positive_bias - scaled + log_weight
        negative_exponent = problem.negative_bias + scaled + log_weight
        if problem.anchor_bias is not None:
            negative_exponent += problem.anchor_bias[chunk.first : chunk.last, None]
        W_positive = log_one_plus_sum(positive_exponent.masked_fill_(~positive, -torch.inf), sums.lse_positive)
        left_out = (
            positive
            if problem.options.drop_similar_negatives is None
            else positive | (problem.options.drop_similar_negatives < S)
        )
        negative_exponent.masked_fill_(left_out, -torch.inf)
        W_negative = log_one_plus_sum(negative_exponent, sums.lse_negative)
        if sums.upstream is None:
            return
        W_positive *= sums.upstream[0].reshape(-1, 1)
        W_negative *= sums.upstream[1].reshape(-1, 1)
        if sums.dpositive_bias is not None and sums.dnegative_bias is not None:
            sums.dpositive_bias += W_positive.sum(0)
            sums.dnegative_bias += W_negative.sum(0)
        torch.sub(W_negative, W_positive, out=S).mul_(problem.options.alpha)


def membership(sets: LabelSets | ConfidenceSets, first: int, last: int, like: Tensor) -> tuple[Tensor, Tensor | float]:
    """Membership of X_p⁺ (c, B) bool, and the logarithm of the weights, for the classes ``first:last``."""
    if isinstance(sets, LabelSets):
        classes = torch.arange(first, last, device=like.device)[:, None]
        if sets.labels.dim() == 1:
            return sets.labels == classes, 0.0
        own = sets.labels == classes[..., None]  # (c, B, K)
        positive = own.any(2)
        if sets.weights is None:
            return positive, 0.0
        return positive, (own * sets.weights).sum(2).masked_fill(~positive, 1).log()
    values = sets.values(first, last, like.dtype)
    confidence = values.sigmoid() if sets.are_logits else values
    log_weight = torch.nn.functional.logsigmoid(sets.beta * (confidence - sets.threshold).abs())
    return confidence > sets.threshold, log_weight


class NativeAnchor(NativeRows, AnchorBackend):
    """On the CPU and on CUDA devices."""

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        S, sets, on_gpu = chunk.S, problem.options.sets, module.on_gpu(chunk.S)
        given: dict[str, Any]
        if isinstance(sets, LabelSets):
            name, given = "labels", {"first_label": chunk.first}
            if on_gpu:
                given["labels"] = sets.labels
            else:
                given["sorted_labels"], given["order"] = sets.by_class()
        else:
            name, values = "confidences", sets.values(chunk.first, chunk.last, S.dtype)
            if on_gpu:
                # Both readings of a row want neighbours in the batch side by side; a matrix (B, C) has classes there.
                values = values.contiguous()
            anchor_stride, candidate_stride = values.stride()
            given = {"values": values, "anchor_stride": anchor_stride, "candidate_stride": candidate_stride}
            given |= {"logits": sets.are_logits, "beta": sets.beta, "threshold": sets.threshold}
        # On a GPU the kernels decide it row by row, from the row's sum.
        row_max = not on_gpu and problem.needs_row_max
        scale = None if on_gpu else chunk.scale
        tensors = problem.native_chunk(chunk.first, chunk.last, sums, row_max, S, scale)
        suffix, arguments = module.SUFFIX[S.dtype], module.addresses(given)
        if not on_gpu:
            kernel = getattr(module.library, f"anchor_lse_{name}_{suffix}")
            kernel(tensors, **arguments, threads=torch.get_num_threads())
            return
        B = S.shape[1]
        # Enough slices of the rows to fill a device, whatever the number of columns, in 256 Ki elements at most.
        slices = max(1, min(64, 131072 // max(B, 1)))
        partials = None if sums.dpositive_bias is None else S.new_empty((slices, 2, B))
        with module.current_stream(S.device) as stream:
            kernel = getattr(module.library, f"anchor_lse_{name}_cuda_{suffix}")
            kernel(tensors, **arguments, partials=module.address(partials), parts=slices, stream=stream)


class TritonAnchor(TritonRows, AnchorBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def inverse_norms(self, P: Tensor, inverse_norm: Tensor) -> bool:
        """Left to the epilogue, which reads P anyway."""
        return True

    def anchor_lse(self, chunk: Chunk, sums: AnchorSums, problem: AnchorProblem) -> None:
        from robustdml_ops.ops.anchor.kernels import anchor_lse as kernel

        S, sets = chunk.S, problem.options.sets
        c, B = S.shape
        values, anchor_stride, candidate_stride = None, 0, 0
        given: dict[str, Any] = {"labels": None, "beta": 0.0, "threshold": 0.0, "ARE_LOGITS": False}
        if isinstance(sets, LabelSets):
            given["labels"] = sets.labels
        else:
            values = sets.values(chunk.first, chunk.last, S.dtype)
            anchor_stride, candidate_stride = values.stride()
            given |= {"beta": float(sets.beta), "threshold": float(sets.threshold), "ARE_LOGITS": sets.are_logits}
        by_anchor = anchor_stride == 1
        V = None if chunk.scale is None else chunk.V
        row_stride, column_stride = (0, 0) if V is None else V.stride()
        D = 0 if V is None else V.shape[1]
        parameters = epilogue_launch(B, S.dtype, values is None, by_anchor, device.tile_of("anchor_lse", S))
        grid = device.grid_of(c, parameters["BLOCK_C"])
        # Sums over anchors cross programs. Each leaves its part and torch adds the parts, in the same order every time.
        bias_partials = None if sums.dpositive_bias is None else S.new_empty((*grid, 2, B))
        with device.current(S):
            kernel[grid](
                S=S,
                dS=S if chunk.dS is None else chunk.dS,
                values=values,
                bias_partials=bias_partials,
                counts=None,
                totals=None,
                bias=0.0,
                c=c,
                B=B,
                first=chunk.first,
                first_program=0,
                parts=0,
                proxies=0,
                V=V,
                row_stride=row_stride,
                column_stride=column_stride,
                D=D,
                BLOCK_D=device.block_of(max(D, 1), int(parameters["BLOCK_B"])),
                anchor_stride=anchor_stride,
                candidate_stride=candidate_stride,
                **given,
                **sums.arguments(),
                **problem.arguments(chunk.first, chunk.last, distinct=True),
                **parameters,
            )
        if bias_partials is not None and sums.dpositive_bias is not None and sums.dnegative_bias is not None:
            dpositive_bias, dnegative_bias = bias_partials.sum(0)
            sums.dpositive_bias += dpositive_bias
            sums.dnegative_bias += dnegative_bias


def epilogue_launch(
    B: int, compute: torch.dtype, labels: bool, anchors_contiguous: bool, tile: Mapping[str, int]
) -> device.Launch:
    """Tile of the epilogue: 16 elements of S a thread; 4 in float64, 8 with confidences or unaligned rows."""
    BLOCK_B = device.block_of(B, tile["candidates"] // (4 if anchors_contiguous else 1))
    elements = tile["elements"] // (4 if compute == torch.float64 else 1 if labels and B % 16 == 0 else 2)
    blocks = {"BLOCK_C": elements // BLOCK_B, "BLOCK_B": BLOCK_B, "WHOLE": B % BLOCK_B == 0}
    return device.launch(**blocks, num_warps=tile["num_warps"], num_stages=1)
