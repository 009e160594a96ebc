"""The anchor log-sum-exp: exponents, sets and weights, results, and the interface of a backend for a chunk of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import in_registry
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.rows.backends import RowsBackend
from robustdml_ops.engine.similarity_chunks import Chunk, upstream_arguments


@dataclass(frozen=True)
class ConfidenceSets:
    """X_p⁺ = {c_xp > threshold}; weight σ(β|c − threshold|); confidences as a matrix, or as factors of their logits."""

    beta: float
    threshold: float
    confidences: Tensor | None = None  # (B, C)
    hidden: Tensor | None = None  # (B, K), with weight and bias
    weight: Tensor | None = None  # (C, K)
    bias: Tensor | None = None  # (C,)

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


def sets_of(parts: Sequence[Any]) -> LabelSets | ConfidenceSets:
    """The sets as they are, or of two numbers, β and threshold or whether labels are elsewhere, and their tensors."""
    if len(parts) == 1:
        return parts[0]  # type: ignore[no-any-return]
    beta, threshold, *tensors = parts
    if not tensors[0].is_floating_point():
        weights = tensors.pop() if tensors[-1].is_floating_point() else None
        return replace(LabelSets(*tensors), elsewhere=bool(beta), weights=weights)
    if len(tensors) == 1:
        return ConfidenceSets(beta, threshold, confidences=tensors[0])
    return ConfidenceSets(beta, threshold, None, *tensors)


@dataclass(frozen=True)
class AnchorProblem:
    """The exponents ∓α·s + bias, with bias = α·margin + log weight, and the sets they are summed over."""

    alpha: float
    positive_bias: Tensor  # (B,) compute dtype, contiguous, as all three
    negative_bias: Tensor  # (B,) compute dtype
    anchor_bias: Tensor | None  # (C,) compute dtype, in the negative exponent only
    sets: LabelSets | ConfidenceSets
    drop_above: Tensor | None = None  # (B,) compute dtype, contiguous: negatives of a larger cosine are left out

    def arguments(self, first: int, last: int, distinct: bool = False) -> dict[str, Any]:
        """Exponents of the classes ``first:last`` for all kernels; ``distinct``: None for an equal negative bias."""
        same = distinct and self.negative_bias is self.positive_bias
        return {
            "alpha": float(self.alpha),
            "drop_above": self.drop_above,
            "positive_bias": self.positive_bias,
            "negative_bias": None if same else self.negative_bias,
            "anchor_bias": None if self.anchor_bias is None else self.anchor_bias[first:last],
            "labels_each": self.sets.labels_each if isinstance(self.sets, LabelSets) else 1,
            "label_weights": self.sets.weights if isinstance(self.sets, LabelSets) else None,
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
        return self.alpha + largest + math.log(len(self.positive_bias)) > largest_exponent


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
