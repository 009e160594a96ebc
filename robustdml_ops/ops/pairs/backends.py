"""Sums over pairs: options, the interface of a backend, and the backend in plain PyTorch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import exact_float32_products
from robustdml_ops.engine.op_arguments import op_options
from robustdml_ops.engine.rows.backends import RowsBackend
from robustdml_ops.engine.rows.lengths import log_one_plus_sum
from robustdml_ops.engine.similarity_chunks import Chunk, slices_of
from robustdml_ops.ops.pairs.sets import PairSets, members

_ELEMENTS = 1 << 20  # of the rows of near pairs at a time


@op_options
@dataclass(frozen=True)
class LSEOptions:
    """log(1 + Σ_P̂ e^{−α(s−base)}) and log(1 + Σ_N̂ e^{β(s−base)})."""

    alpha: float
    beta: float
    base: float
    epsilon: float | None = None  # mining: n stays if s + ε > min over P, p if s − ε < max over N; None: all stay

    kind: ClassVar[str] = "pair_lse"  # name of its epilogues, as of all three
    average: ClassVar[bool] = False
    euclidean: ClassVar[bool] = False

    def arguments(self, m: int, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of all kernels over ``m`` candidates."""
        # Rows whose exponents can overflow are shifted by their maximum, as in the anchor log-sum-exp.
        largest = max(self.alpha * (1 + self.base), self.beta * (1 - self.base), 0.0) + math.log(max(1, m))
        row_max = largest > (85.0 if dtype == torch.float32 else 700.0)
        numbers = {name: float(getattr(self, name) or 0.0) for name in ("alpha", "beta", "base", "epsilon")}
        return {**numbers, "mining": self.epsilon is not None, "row_max": row_max}


@op_options
@dataclass(frozen=True)
class HingeOptions:
    """Σ_P [m⁺ − t]₊ and Σ_N [t − m⁻]₊ of every anchor, t = s or −√(2 − 2s), with an offset for each term above 0."""

    positive_margin: float  # of t
    negative_margin: float
    positive_offset: float
    negative_offset: float
    euclidean: bool
    average: bool = False  # each side is divided by the number of its terms above 0, of all anchors together

    kind: ClassVar[str] = "pair_hinge"

    def arguments(self, m: int, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of all kernels."""
        names = ("positive_margin", "negative_margin", "positive_offset", "negative_offset")
        return {**{name: float(getattr(self, name)) for name in names}, "euclidean": self.euclidean}


@op_options
@dataclass(frozen=True)
class ContrastOptions:
    """A softmax or logistic loss of every anchor, of its logits z = scale · s + bias, and its log Σ_{P∪N} e^z.

    "outside" and "inside": log Σ_{P∪N} e^z less the mean of z over P, or less log of the mean of e^z; "each": over P
    Σ_p log(e^z_p + Σ_N e^z) − z_p; "sigmoid": Σ_P log(1 + e^−z) + Σ_N log(1 + e^z), with sums of 0. An anchor without
    positives has 0, but "sigmoid". "both": "outside" for every pair of an anchor i and candidate i, the log-sum-exp of
    the candidate over all anchors added, Σ of both with the anchor's weight.
    """

    form: str  # "both" or one of FORMS

    kind: ClassVar[str] = "pair_contrast"
    average: ClassVar[bool] = False
    euclidean: ClassVar[bool] = False

    def arguments(self, m: int, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of all kernels."""
        return {"form": "outside" if self.form == "both" else self.form}


FORMS = ("outside", "inside", "each", "sigmoid")  # of the epilogues
PairOptions: TypeAlias = LSEOptions | HingeOptions | ContrastOptions


@op_options
@dataclass(frozen=True)
class PairProblem:
    """Options, sets, and the constants of a sweep."""

    options: PairOptions
    sets: PairSets
    candidate_weights: Tensor | None = None  # (m,) compute type: log-sum-exps are multiplied by the mean of their set's
    coefficients: Tensor | None = None  # (2,) compute type, of a contrast: scale and bias
    # (m,) compute type each, of a contrast: log-sum-exps of the candidates over all anchors, and their upstream
    # gradients, which join dL/dS of the pairs of anchors that have positives.
    column_lse: Tensor | None = None
    column_upstream: Tensor | None = None
    hardest: Tensor | None = None  # (2, n) compute type, out: see PairSums

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of all kernels beside the sets."""
        given = self.options.arguments(len(self.sets.candidate_labels), dtype)
        names = {"pair_lse": ("candidate_weights",), "pair_hinge": ()}
        tensors = names.get(self.options.kind, ("coefficients", "column_lse", "column_upstream"))
        return {**given, **{name: getattr(self, name) for name in tensors}}


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
    hardest: Tensor | None = None  # (2, n) out: least cosine over P, ∞ without any, and largest over N, or −∞

    def of(self, chunk: Chunk) -> "PairSums":
        """Those of a chunk."""
        first, last = chunk.first, chunk.last
        upstream = None if self.upstream is None else slices_of(self.upstream, first, last)
        counts = None if self.counts is None else self.counts[:, first:last]
        dcoefficients = None if self.dcoefficients is None else self.dcoefficients[:, first:last]
        sides = self.positive[first:last], self.negative[first:last]
        hardest = None if self.hardest is None else self.hardest[:, first:last]
        return PairSums(upstream, *sides, counts, self.rows, dcoefficients, hardest)

    def see(self, S: Tensor, positive: Tensor, negative: Tensor) -> None:
        """Fill ``hardest`` from cosines (c, m) and sets, before any mining."""
        if self.hardest is not None:
            torch.amin(S.masked_fill(~positive, torch.inf), 1, out=self.hardest[0])
            torch.amax(S.masked_fill(~negative, -torch.inf), 1, out=self.hardest[1])


class PairBackend(RowsBackend):
    """Epilogues of the sums of pairs on one backend."""

    # Whether it has lanes, tiles and whole steps on the CPU, where its epilogues scale candidates.
    has_lanes = False

    def pair_sums(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        """The epilogue of one chunk: its results into ``sums`` of all anchors; dL/dS into ``dS``, or S without one."""
        raise NotImplementedError

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

    def keeps_cosines(self, S: Tensor, problem: PairProblem) -> bool:
        """Whether computing the sums leaves the cosines in S as they were, for a second reading."""
        return True


class Arithmetic(NamedTuple):
    """The backend of a sweep over pairs, and its types."""

    backend: PairBackend
    dtype: torch.dtype  # of sums and gradients
    operand: torch.dtype  # of what the products multiply


class EagerPairs(PairBackend):
    """On every device, without a compiler."""

    def pair_sums(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        epilogue: Any = getattr(self, problem.options.kind)
        epilogue(chunk, problem, sums.of(chunk))

    def pair_lse(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        S, (positive, negative) = chunk.S, members(problem.sets, chunk.first, chunk.last)
        sums.see(S, positive, negative)
        of: Any = problem.options
        if of.epsilon is not None:
            positive, negative = informative(S, positive, negative, of.epsilon)
        distance = of.base - S
        W_positive = log_one_plus_sum((of.alpha * distance).masked_fill_(~positive, -torch.inf), sums.positive)
        W_negative = log_one_plus_sum(distance.mul_(-of.beta).masked_fill_(~negative, -torch.inf), sums.negative)
        if problem.candidate_weights is not None:
            for W, out, side in ((W_positive, sums.positive, positive), (W_negative, sums.negative, negative)):
                mean = mean_weight(side, problem.candidate_weights)
                out.mul_(mean)
                W.mul_(mean[:, None])
        if sums.upstream is None:
            return
        W_positive *= -of.alpha * sums.upstream[0].reshape(-1, 1)
        W_negative *= of.beta * sums.upstream[1].reshape(-1, 1)
        torch.add(W_positive, W_negative, out=S)

    def pair_hinge(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        S, (positive, negative) = chunk.S, members(problem.sets, chunk.first, chunk.last)
        sums.see(S, positive, negative)
        assert sums.counts is not None
        limits, euclidean = DistanceLimits.of(chunk.V), problem.options.euclidean
        t = S
        if euclidean:
            assert sums.rows is not None
            anchors, candidates = sums.rows.anchors[chunk.first : chunk.last], sums.rows.candidates
            t = distances(S, anchors, candidates, positive | negative, limits.near).neg_()
        positive_sum, negative_sum, positive, negative = hinge_sums(t, positive, negative, problem.options)
        sums.positive.copy_(positive_sum)
        sums.negative.copy_(negative_sum)
        torch.stack([positive.sum(1), negative.sum(1)], out=sums.counts)
        if sums.upstream is None:
            return
        # dt/ds: 1, or 1 / distance.
        slope = -t.reciprocal().masked_fill_(-t <= limits.resolution, 0) if euclidean else torch.ones_like(S)
        gradient = positive * -sums.upstream[0].reshape(-1, 1) + negative * sums.upstream[1].reshape(-1, 1)
        torch.mul(gradient, slope, out=S)

    def pair_contrast(self, chunk: Chunk, problem: PairProblem, sums: PairSums) -> None:
        S, (positive, negative) = chunk.S, members(problem.sets, chunk.first, chunk.last)
        sums.see(S, positive, negative)
        of: Any = problem.options
        assert problem.coefficients is not None
        scale, bias = problem.coefficients
        Z = scale * S + bias
        loss, lse, of_loss, of_lse = contrast_terms(Z, positive, negative, of.form)
        sums.positive.copy_(loss)
        sums.negative.copy_(lse)
        if sums.upstream is None:
            return
        dZ = of_loss.mul_(sums.upstream[0].reshape(-1, 1)).add_(of_lse.mul_(sums.upstream[1].reshape(-1, 1)))
        if problem.column_lse is not None and problem.column_upstream is not None:
            paired = (positive | negative) & positive.any(1, keepdim=True)
            dZ += (Z - problem.column_lse).masked_fill_(~paired, -torch.inf).exp_() * problem.column_upstream
        assert sums.dcoefficients is not None
        torch.stack([(dZ * S).sum(1), dZ.sum(1)], out=sums.dcoefficients)
        torch.mul(dZ, scale, out=S)


def hinge_sums(t: Tensor, positive: Tensor, negative: Tensor, of: Any) -> tuple[Tensor, ...]:
    """Sums of hinges (c,) of both sides of t (c, m), and which pairs are in them, (c, m) bool; differentiable."""
    # Negated, so that a NaN stays and reaches the result.
    positive, negative = positive & ~(t >= of.positive_margin), negative & ~(t <= of.negative_margin)
    above = (of.positive_margin + of.positive_offset - t).masked_fill_(~positive, 0).sum(1)
    below = (t - (of.negative_margin - of.negative_offset)).masked_fill_(~negative, 0).sum(1)
    return above, below, positive, negative


def contrast_terms(Z: Tensor, positive: Tensor, negative: Tensor, form: str) -> tuple[Tensor, ...]:
    """Losses and log-sum-exps (c,) of the logits Z (c, m), and the derivatives of both by Z; differentiable."""
    log_sigmoid, sigmoid = torch.nn.functional.logsigmoid, torch.sigmoid
    if form == "sigmoid":
        loss = -torch.where(positive, log_sigmoid(Z), torch.where(negative, log_sigmoid(-Z), 0)).sum(1)
        of_loss = torch.where(positive, -sigmoid(-Z), torch.where(negative, sigmoid(Z), 0))
        return loss, torch.zeros_like(loss), of_loss, torch.zeros_like(Z)
    if form == "each":
        lse, shares = _softmax(Z, negative)
        above = torch.where(positive, sigmoid(lse[:, None] - Z), 0)
        loss = -torch.where(positive, log_sigmoid(Z - lse[:, None]), 0).sum(1)
        return loss, torch.zeros_like(loss), above.sum(1, keepdim=True) * shares - above, torch.zeros_like(Z)
    some, number = positive.any(1), positive.sum(1).clamp(min=1).to(Z.dtype)
    lse, shares = _softmax(Z, (positive | negative) & some[:, None])
    if form == "outside":
        # Of differences: a loss near 0 keeps its digits.
        loss = torch.where(positive, lse[:, None] - Z, 0).sum(1) / number
        target = positive.to(Z.dtype) / number[:, None]
    else:
        of_positives, target = _softmax(Z, positive)
        loss = (lse - of_positives + number.log()).masked_fill(~some, 0)
    return loss, lse.masked_fill(~some, 0), shares - target, shares


def _softmax(Z: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exps (c,) over the members of each row, the least number without any, and their shares (c, m)."""
    masked, least = Z.masked_fill(~members, -torch.inf), torch.finfo(Z.dtype).min
    shift = masked.detach().amax(1, keepdim=True).clamp(min=least)
    terms = (masked - shift).exp()
    total = terms.sum(1, keepdim=True)
    total = total.masked_fill(total == 0, 1)  # no members
    return (shift + total.log())[:, 0].masked_fill(~members.any(1), least), terms / total


def distances(S: Tensor, anchors: Tensor, candidates: Tensor, members: Tensor, near: float) -> Tensor:
    """√(2 − 2s), and what is below ``near`` of the rows themselves where it matters, ``members``; (c, m)."""
    result = (2 - 2 * S).clamp_(min=0).sqrt_()
    # On a GPU this waits for the stream. Native and Triton kernels do not.
    pairs = ((result < near) & members).nonzero()
    for part in torch.split(pairs, max(1, _ELEMENTS // anchors.shape[1])):
        i, j = part.unbind(1)
        result[i, j] = near_distances(anchors[i].double(), candidates[j].double()).to(result.dtype)
    return result


def near_distances(P: Tensor, Q: Tensor) -> Tensor:
    """Distances (k,) of the directions of rows (k, D) that almost agree, in double; differentiable where not 0.

    d²|u||v| = |u − v|² − (|u| − |v|)² with u and v the rows over their largest elements; below 10⁻¹⁴ d is 0.
    """
    u, v = (rows / rows.detach().abs().amax(1, keepdim=True) for rows in (P, Q))
    u_norm, v_norm = (rows.square().sum(1).sqrt() for rows in (u, v))
    radial = ((u - v) * (u + v)).sum(1) / (u_norm + v_norm)
    square = ((u - v).square().sum(1) - radial.square()) / (u_norm * v_norm)
    apart = square > 1e-28
    return square.masked_fill(~apart, 1).sqrt().masked_fill(~apart, 0)


def mean_weight(side: Tensor, weights: Tensor) -> Tensor:
    """Mean of ``weights`` (m,) over the members of each row's set; 0 for an empty set."""
    return (side.to(weights.dtype) @ weights) / side.sum(1).clamp(min=1)


def informative(S: Tensor, positive: Tensor, negative: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mining: the informative pairs of both sets."""
    lowest_positive = S.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    highest_negative = S.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    # Negated, so that a NaN stays and reaches the result.
    return positive & ~(S - epsilon >= highest_negative), negative & ~(S + epsilon <= lowest_positive)
