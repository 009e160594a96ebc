"""What a step of a loss on pairs computes, and its plan on the CPU: one native call."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import choose
from robustdml_ops.engine.plan import Plan, Results, native_weights_serve
from robustdml_ops.ops.pairs.backends import Arithmetic, ContrastOptions, DistanceLimits, PairOptions
from robustdml_ops.ops.pairs.compiled_backends import (
    WAYS,
    native_numbers,
    native_problem,
    native_shape,
)
from robustdml_ops.ops.pairs.sweep import BACKENDS, way_of

# Places in the enumeration Divisor of csrc/pairs/cpu_step.h.
_DIVISORS = ("samples", "present", "terms", "above", "pairs")
# Fields of the native problems that a step fills.
_FILLED = {
    "pair_lse": ("candidate_weights",),
    "pair_hinge": ("positive_count", "negative_count"),
    "pair_contrast": ("coefficients", "dscale", "dbias", "column_lse", "column_upstream"),
}


@dataclass(frozen=True)
class PairFormula:
    """A loss of the sums of pairs: L = 1/N Σ_i w_i (positive_i / divisors[0] + negative_i / divisors[1])."""

    options: PairOptions  # of the sums
    N: str = "present"  # all "samples", those "present", "terms" of each side, losses "above" 0, or positive "pairs"
    divisors: tuple[float, float] = (1.0, math.inf)
    scale: float = 0.0  # of a contrast's cosines; 0: a parameter
    candidate_weights: bool = False  # w are the weights of the candidates, too
    absent_zero_weights: bool = True  # a sample of weight 0 is in no set
    ignored: int | None = None  # a label of candidates that are in no set


@dataclass(frozen=True)
class PairPlan(Plan):
    """A step of one formula."""

    formula: PairFormula
    way: str  # of WAYS
    sizes: tuple[int, int, int]  # n, m, D
    call: Callable[..., bool] = field(repr=False)
    native: tuple[Any, ...] = field(repr=False)  # shape, formula and problem as native structures
    general_loss: Callable[..., Tensor] = field(repr=False)

    def run(self, *tensors: Any) -> Results | None:
        """One native call; None for NaN, rows of extreme length, or weights and settings that are no finite numbers.

        Tensors: anchors, candidates, logarithm of the scale, bias, labels, labels of candidates, weights; some None.
        """
        loss, weights = tensors[0].new_empty(()), tensors[6]
        if weights is not None and weights.dtype not in (loss.dtype, torch.bool):
            tensors = (*tensors[:6], weights.to(loss.dtype))
        gradients = [torch.empty_like(t) if wanted else None for t, wanted in zip(tensors, self.wanted, strict=False)]
        X, candidates, scale, bias, labels, candidate_labels, weights, *places = [
            0 if tensor is None else tensor.data_ptr() for tensor in (*tensors[:7], *gradients, loss)
        ]
        given = X, candidates, labels, candidate_labels, weights, scale, bias
        return (loss, gradients) if self.call(*self.native, *given, *places) else None

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweep that is differentiable twice."""
        return self.general_loss(*tensors)


def pair_plan(
    formula: PairFormula, tensors: Sequence[Any], backend: str | None, itself: bool, general: Callable[..., Tensor]
) -> PairPlan | None:
    """The plan of these tensors, see :meth:`PairPlan.run`; None where no native call reads them as they are.

    ``itself``: candidate i is anchor i or another view of it. ``general``: the loss of such tensors.
    """
    X, candidates, *_, weights = tensors
    if candidates is None and tensors[5] is not None:
        return None
    if not _are_read(*tensors) or (itself and candidates is not None and candidates.shape != X.shape):
        return None
    (n, D), dtype, m = X.shape, X.dtype, len(X if candidates is None else candidates)
    if torch.is_autocast_enabled("cpu") or module.matrix_product(dtype) == 0:
        return None
    arithmetic = Arithmetic(choose(BACKENDS, backend, X.device, dtype), dtype, dtype)
    way = way_of(X, candidates, arithmetic, formula.options)
    if not arithmetic.backend.has_lanes or way not in WAYS:
        return None
    suffix, addresses = module.SUFFIX[dtype], dict.fromkeys(_FILLED[formula.options.kind], 0)
    settings = module.library.PairFormula(
        divisor=_DIVISORS.index(formula.N),
        positive_divisor=formula.divisors[0],
        negative_divisor=formula.divisors[1],
        scale=formula.scale,
        itself=itself,
        both_sides=formula.options == ContrastOptions("both"),
        bool_weights=weights is not None and weights.dtype == torch.bool,
        candidate_weights=formula.candidate_weights and weights is not None,
        absent_zero_weights=formula.absent_zero_weights,
        has_ignored=formula.ignored is not None,
        ignored=formula.ignored or 0,
    )
    shape = native_shape(way, X, X if candidates is None else candidates, dtype, formula.N == "terms")
    numbers = native_numbers(formula.options.arguments(m, dtype))
    if formula.options.euclidean:
        numbers |= DistanceLimits.exact(dtype)._asdict()
    problem = native_problem(formula.options, dtype, {**numbers, **addresses})
    graded = torch.is_grad_enabled()
    wanted = tuple(graded and tensor is not None and tensor.requires_grad for tensor in tensors[:4])
    call = getattr(module.library, f"{formula.options.kind}_step_{suffix}")
    return PairPlan(wanted, formula, way, (n, m, D), call, (shape, settings, problem), general)


def _are_read(*tensors: Any) -> bool:
    """Whether the native call reads these tensors as they are."""
    X, candidates, scale, bias, labels, candidate_labels, weights = tensors
    if X.dim() != 2 or not all(tensor is None or (tensor.is_cpu and tensor.is_contiguous()) for tensor in tensors):
        return False
    others = X if candidates is None else candidates
    if others.dim() != 2 or others.shape[1] != X.shape[1] or not X.numel() or not others.numel():
        return False
    types = {tensor.dtype for tensor in (X, candidates, scale, bias) if tensor is not None}
    if types not in ({torch.float32}, {torch.float64}):
        return False
    for one, rows in ((labels, X), (candidate_labels, others)):
        if one is not None and (one.dtype != torch.int64 or one.shape != rows.shape[:1]):
            return False
    return native_weights_serve(weights, X)
