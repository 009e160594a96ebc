"""Logits of the class log-sum-exp, their sums, and the interface of a backend for a chunk of classes."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.rows.backends import RowsBackend
from robustdml_ops.engine.similarity_chunks import Chunk, Similarities, Swept


@dataclass(frozen=True)
class ClassProblem:
    """The logits scale_k·s'_xk + bias_k, where s' pools the similarities with the H sub-centres of a class."""

    labels: LabelSets
    scale: Tensor  # () or (C,) compute dtype, contiguous
    bias: Tensor | None  # (C,) compute dtype, contiguous; −inf: the class is masked
    centers: int  # H
    target_bias: float  # added to the logit of the label
    pooling: str  # "none" (H = 1), "max" or "softmax"
    gamma: float  # temperature of "softmax"
    exclude_target: bool  # whether the sum leaves the label out
    normalize: bool  # whether proxies are scaled to length 1
    drop_above: Tensor | None = None  # (B,) compute dtype, contiguous: other classes than the label's above it are out

    def classes(self, chunk: Chunk) -> tuple[int, int]:
        """The first class of a chunk, which holds whole classes, and the one after its last."""
        return chunk.first // self.centers, chunk.last // self.centers

    def swept(self, proxies: Tensor, selected: Tensor | None) -> Swept:
        """The proxies, or their ``selected`` rows, as a sweep takes them."""
        return Swept(proxies, selected=selected, normalize=self.normalize, together=self.centers)

    def arguments(self, first: int, last: int) -> dict[str, Any]:
        """Logits of the classes ``first:last`` as arguments of every backend's kernels; views keep the memory alive."""
        return {
            "scale": self.scale if self.scale.dim() == 0 else self.scale[first:last],
            "scale_stride": self.scale.dim(),
            "bias": None if self.bias is None else self.bias[first:last],
            "gamma": float(self.gamma),
            "drop_above": self.drop_above,
        }

    def places(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Place of every label among the classes ``first:last``, (K, B), and whether it is one of these."""
        labels = self.labels.labels
        place = labels.reshape(len(labels), self.labels.labels_each).t() - first
        return place.clamp(0, last - first - 1), (place >= 0) & (place < last - first)


@dataclass
class ClassSums:
    """Sums of the forward sweep: Σ exp(logit) over the classes that count but the labels', and the labels' logits."""

    shift: Tensor  # (B,) float64 in/out: largest logit so far; −inf: none yet
    total: Tensor  # (B,) float64 in/out: Σ exp(logit − shift) so far
    target: Tensor  # (B,) or (B, K) compute dtype out: scale·s' + bias of the labels, once their chunks have passed


@dataclass(frozen=True)
class ClassUpstream:
    """Inputs of the backward sweep for each sample, (B,) in the compute dtype, contiguous."""

    lse: Tensor  # +inf where the sum is empty: exp(logit − lse) is 0 there
    dlse: Tensor  # dL/dlse
    dlogit: Tensor  # (B,) or (B, K): dL/dlogit of the labels, by way of lse and of target


class ClassBackend(RowsBackend):
    """Epilogues of the class log-sum-exp on one backend."""

    saves_terms = True  # whether class_lse() writes chunk.dS

    def class_lse(self, chunk: Chunk, problem: ClassProblem, sums: ClassSums) -> None:
        """Add the classes of ``chunk`` to ``sums``; exp(logit) · scale · chunk.scale in ``chunk.dS``, if it has one."""
        raise NotImplementedError

    def complete_terms(
        self, similarities: Similarities, E: Tensor, problem: ClassProblem, upstream: ClassUpstream
    ) -> tuple[Tensor, Tensor]:
        """Complete the terms that class_lse() wrote, see :func:`.saved_terms.complete`."""
        raise NotImplementedError

    def class_lse_backward(self, chunk: Chunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        """dL/dS in ``chunk.dS``, or in S where there is none."""
        raise NotImplementedError
