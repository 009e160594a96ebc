"""The plan of a step of a loss on pairs on the CPU: one native call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import choose
from robustdml_ops.engine.plan import Plan, Results, native_weights_serve
from robustdml_ops.ops.pairs.backends import Arithmetic, ContrastOptions, DistanceLimits
from robustdml_ops.ops.pairs.compiled_backends import (
    WAYS,
    native_numbers,
    native_problem,
    native_shape,
)
from robustdml_ops.ops.pairs.formula import PairFormula
from robustdml_ops.ops.pairs.sets import sets_are_read
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

        Tensors: anchors, candidates, logarithm of the scale, bias, labels, labels of candidates, weights, ids, ids of
        candidates; some None.
        """
        loss, weights = tensors[0].new_empty(()), tensors[6]
        if weights is not None and weights.dtype not in (loss.dtype, torch.bool):
            tensors = (*tensors[:6], weights.to(loss.dtype), *tensors[7:])
        gradients = [torch.empty_like(t) if wanted else None for t, wanted in zip(tensors, self.wanted, strict=False)]
        X, candidates, scale, bias, labels, candidate_labels, weights, *places = [
            0 if tensor is None else tensor.data_ptr() for tensor in (*tensors[:9], *gradients, loss)
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
    X, candidates, _, _, labels, _, weights, ids, _ = tensors
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
    sets = formula.sets(itself, labels, ids)
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
        labels_each=sets.labels,
        ids_each=sets.ids,
        ids_keep_positives=sets.keeps_positives,
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
    X, candidates, scale, bias, labels, candidate_labels, weights, *ids = tensors
    if X.dim() != 2 or not all(tensor is None or (tensor.is_cpu and tensor.is_contiguous()) for tensor in tensors):
        return False
    others = X if candidates is None else candidates
    if others.dim() != 2 or others.shape[1] != X.shape[1] or not X.numel() or not others.numel():
        return False
    types = {tensor.dtype for tensor in (X, candidates, scale, bias) if tensor is not None}
    if types not in ({torch.float32}, {torch.float64}):
        return False
    return sets_are_read((len(X), len(others)), labels, candidate_labels, *ids) and native_weights_serve(weights, X)
