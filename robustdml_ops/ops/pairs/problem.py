"""The sets of pairs, the two kinds of sums over them, and the interface of a backend for a chunk of anchors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.triton_device import exact_float32_products
from robustdml_ops.engine.rows.backends import RowsBackend
from robustdml_ops.engine.similarity_chunks import Chunk, slices_of


@dataclass(frozen=True)
class PairSets:
    """Positives P_i of anchor i: candidates of its label; negatives N_i: of another. ``ABSENT`` is in no set."""

    labels: Tensor  # (n,) int64, contiguous
    candidate_labels: Tensor  # (m,) int64, contiguous; the same tensor where the candidates are the anchors
    itself: bool  # candidate i is anchor i, for all n anchors; m ≥ n then

    @classmethod
    def of(cls, labels: Tensor, candidate_labels: Tensor | None, anchors_first: bool = False) -> "PairSets":
        """From (n,) and (m,) int64. None: candidate i is anchor i; with ``anchors_first`` this holds for i < n."""
        labels = labels.contiguous()
        others = labels if candidate_labels is None else candidate_labels.contiguous()
        return cls(labels, others, candidate_labels is None or anchors_first)

    @property
    def alone(self) -> bool:
        """Whether the labels of the candidates are those of the anchors."""
        return self.candidate_labels is self.labels

    def turned(self) -> "PairSets":
        """The sets of the candidates as anchors."""
        return PairSets.of(self.candidate_labels, self.labels)

    @cached_property
    def narrow(self) -> tuple[Tensor, Tensor]:
        """Both label vectors as int32, which vector code compares as fast as floats. Reads values: CPU only."""
        wide = self.labels if self.alone else torch.cat([self.labels, self.candidate_labels])
        both = torch.empty_like(wide, dtype=torch.int32)
        module.library.narrow_labels(wide.data_ptr(), len(wide), both.data_ptr())
        return (both, both) if self.alone else (both[: len(self.labels)], both[len(self.labels) :])


@dataclass(frozen=True)
class PairLSEProblem:
    """log(1 + Σ_P̂ e^{−α(s−base)}) and log(1 + Σ_N̂ e^{β(s−base)}), times the mean of the candidates' weights."""

    sets: PairSets
    alpha: float
    beta: float
    base: float
    epsilon: float | None  # mining: n stays if s + ε > min over P, p stays if s − ε < max over N; None: all stay
    candidate_weights: Tensor | None  # (m,) compute type, contiguous

    kind = "pair_lse"  # name of its epilogues
    counts = False  # whether a chunk has counts
    has_coefficients = average = euclidean = False
    form = ""

    @property
    def constants(self) -> tuple[Tensor | None, str, list[float]]:
        """Weights, kind and numbers for :class:`~robustdml_ops.ops.pairs.autograd.PairConstants`."""
        mining = [] if self.epsilon is None else [self.epsilon]
        return self.candidate_weights, "lse", [self.alpha, self.beta, self.base, *mining]

    def needs_row_max(self, dtype: torch.dtype) -> bool:
        """Whether an exponent can overflow, so that rows are shifted by their maximum, as in the anchor log-sum-exp."""
        return bool(self._numbers(dtype)["row_max"])

    def _numbers(self, dtype: torch.dtype) -> dict[str, Any]:
        m = len(self.sets.candidate_labels)
        return lse_fields(self.alpha, self.beta, self.base, self.epsilon, m, dtype)

    def native_fields(self, sums: "PairSums", operands: Tensor, first: int) -> dict[str, Any]:
        """Fields of the native structure; ``sums`` are those of a chunk whose first anchor is ``first``."""
        return {**self._numbers(sums.positive.dtype), "candidate_weights": self.candidate_weights}


def lse_fields(
    alpha: float, beta: float, base: float, epsilon: float | None, m: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Numbers of the native log-sum-exps over ``m`` candidates."""
    largest = max(alpha * (1 + base), beta * (1 - base), 0.0) + math.log(max(1, m))
    row_max, mining = largest > (85.0 if dtype == torch.float32 else 700.0), epsilon is not None
    numbers = {"alpha": alpha, "beta": beta, "base": base, "epsilon": epsilon or 0.0}
    return {**numbers, "mining": mining, "row_max": row_max}


@dataclass(frozen=True)
class PairHingeProblem:
    """Σ_P [m⁺ − t]₊ and Σ_N [t − m⁻]₊ of every anchor, t = s or −√(2 − 2s), with an offset for each term above 0."""

    sets: PairSets
    positive_margin: float  # of t
    negative_margin: float
    positive_offset: float
    negative_offset: float
    euclidean: bool
    average: bool = False

    kind = "pair_hinge"
    counts = True
    has_coefficients = False
    form = ""

    @property
    def margins(self) -> dict[str, float]:
        """Both margins and offsets, by name."""
        names = ("positive_margin", "negative_margin", "positive_offset", "negative_offset")
        return {name: float(getattr(self, name)) for name in names}

    @property
    def constants(self) -> tuple[Tensor | None, str, list[float]]:
        """As of :class:`PairLSEProblem`."""
        return None, "hinge", [*self.margins.values(), self.euclidean, self.average]

    def native_fields(self, sums: "PairSums", operands: Tensor, first: int) -> dict[str, Any]:
        """As of :class:`PairLSEProblem`."""
        assert sums.counts is not None
        positive, negative = sums.counts
        fields = {**self.margins, "euclidean": self.euclidean, "positive_count": positive, "negative_count": negative}
        if sums.rows is None:
            return fields
        anchors, candidates = sums.rows
        elements = {"anchors_element": _ELEMENT[anchors.dtype], "candidates_element": _ELEMENT[candidates.dtype]}
        rows = {"anchors": anchors[first:], "candidates": candidates, "D": anchors.shape[1]}
        return {**fields, **DistanceLimits.of(operands)._asdict(), **rows, **elements}


@dataclass(frozen=True)
class PairContrastProblem:
    """A softmax or logistic loss of every anchor, of its logits z = scale · s + bias, and its log Σ_{P∪N} e^z.

    "outside" and "inside": log Σ_{P∪N} e^z less the mean of z over P, or less log of the mean of e^z; "each": over P
    Σ_p log(e^z_p + Σ_N e^z) − z_p; "sigmoid": Σ_P log(1 + e^−z) + Σ_N log(1 + e^z), with sums of 0. An anchor without
    positives has 0, but "sigmoid". "both": "outside" for every pair of an anchor i and candidate i, the log-sum-exp of
    the candidate over all anchors added, Σ of both with the anchor's weight. ``columns``: log-sum-exps of the
    candidates over all anchors and their upstream gradients, which join dL/dS of the pairs of anchors that have
    positives.
    """

    sets: PairSets
    coefficients: Tensor  # (2,) compute type: scale and bias
    form: str  # "both" or one of FORMS
    columns: tuple[Tensor, Tensor] | None = None  # (m,) compute type each, contiguous

    kind = "pair_contrast"
    has_coefficients = True
    counts = average = euclidean = False

    @property
    def constants(self) -> tuple[Tensor | None, str, list[float]]:
        """As of :class:`PairLSEProblem`."""
        return None, self.form, []

    def native_fields(self, sums: "PairSums", operands: Tensor, first: int) -> dict[str, Any]:
        """As of :class:`PairLSEProblem`."""
        dscale, dbias = (None, None) if sums.dcoefficients is None else sums.dcoefficients
        column_lse, column_upstream = self.columns or (None, None)
        columns = {"column_lse": column_lse, "column_upstream": column_upstream}
        form = FORMS.index(self.form)
        return {"form": form, "coefficients": self.coefficients, "dscale": dscale, "dbias": dbias, **columns}


# As cuda::Element of csrc/rows/cuda.h.
_ELEMENT = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
FORMS = ("outside", "inside", "each", "sigmoid")  # of the epilogues
PairProblem = PairLSEProblem | PairHingeProblem | PairContrastProblem


class GivenRows(NamedTuple):
    """All anchors and candidates as they were given: cosines have rounded away what near ones differ by."""

    anchors: Tensor  # (n, D) contiguous
    candidates: Tensor  # (m, D) contiguous


class DistanceLimits(NamedTuple):
    """Limits of distances d = √(2 − 2s), for cosines with a rounding error ε that depends on the products' type.

    d has a relative error ε/d²: below ``near`` it is computed from the rows. The gradient has the error ε/d and is 0 up
    to ``resolution``.
    """

    near: float
    resolution: float

    @classmethod
    def of(cls, operand: Tensor) -> "DistanceLimits":
        """The limits for products of ``operand``; PyTorch may be set to round those of float32."""
        exact = operand.dtype == torch.float64
        exact |= operand.dtype == torch.float32 and exact_float32_products(operand.device)
        return cls.exact(operand.dtype) if exact else _COARSE

    @classmethod
    def exact(cls, dtype: torch.dtype) -> "DistanceLimits":
        """The limits for products with all digits of their operands."""
        return _FLOAT64 if dtype == torch.float64 else _FLOAT32


_FLOAT64 = DistanceLimits(2.0**-8, 2.0**-50)
_FLOAT32 = DistanceLimits(2.0**-5, 2.0**-21)
_COARSE = DistanceLimits(2.0**-3, 2.0**-6)  # bfloat16 or TF32


@dataclass(frozen=True)
class PairSums:
    """Upstream gradients and results of all anchors or of a chunk, beside dL/dS."""

    upstream: tuple[Tensor, Tensor] | None  # () or (n,) each: dL/dpositive, dL/dnegative; None: no gradients wanted
    positive: Tensor  # (n,) out
    negative: Tensor  # (n,) out
    counts: Tensor | None  # (2, n) int64, out: terms above 0 on either side; None: the problem counts none
    rows: GivenRows | None  # of all anchors; None: the problem needs no distances
    dcoefficients: Tensor | None = None  # (2, n) out, of contrasts with upstream: Σ_j s dL/dz and Σ_j dL/dz

    def of(self, chunk: Chunk) -> "PairSums":
        """Those of a chunk."""
        first, last = chunk.first, chunk.last
        upstream = None if self.upstream is None else slices_of(self.upstream, first, last)
        counts = None if self.counts is None else self.counts[:, first:last]
        dcoefficients = None if self.dcoefficients is None else self.dcoefficients[:, first:last]
        sides = self.positive[first:last], self.negative[first:last]
        return PairSums(upstream, *sides, counts, self.rows, dcoefficients)


class PairBackend(RowsBackend):
    """Epilogues of the sums of pairs on one backend."""

    # Whether it has lanes, tiles and whole steps on the CPU, where its epilogues scale candidates.
    has_lanes = False

    def pair_sums(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        """The epilogue of one chunk: its results into ``sums`` of all anchors; dL/dS into ``dS``, or S without one."""
        epilogue: Any = getattr(self, problem.kind)
        epilogue(chunk, problem, sums.of(chunk))

    def whole_sweep(
        self,
        way: str,
        matrices: Sequence[Tensor],
        problem: PairProblem,
        sums: "Sequence[PairSums]",
        arithmetic: "Arithmetic",
        want: Sequence[bool],
    ) -> tuple[Tensor | None, Tensor | None] | None:
        """Gradients of anchors and candidates of a sweep ``way``, see :func:`~robustdml_ops.ops.pairs.sweep.way_of`.

        Fills the sums of the anchors and, where they are two, of the candidates as anchors. None, with sums of no
        meaning: in chunks, because the backend has no such sweep, or rows have NaN or extreme lengths.
        """
        return None

    def keeps_cosines(self, S: Tensor, problem: PairHingeProblem) -> bool:
        """Whether computing the sums leaves the cosines in S as they were, for a second reading."""
        return True


class Arithmetic(NamedTuple):
    """The backend of a sweep over pairs, and its types."""

    backend: PairBackend
    dtype: torch.dtype  # of sums and gradients
    operand: torch.dtype  # of what the products multiply
