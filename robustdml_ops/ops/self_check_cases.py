"""The cases of the self-check: ops, inputs and tolerances of each primitive.

Higher layers add theirs by :func:`register_cases`: ``losses/self_check_cases.py`` whole steps, ``robust/`` two tables.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends.self_check import PRIMITIVES, Case, Primitive
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.rows.backends import BACKENDS as ROWS
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.ops import anchor, classes, lambert_w, otsu, vmf
from robustdml_ops.ops.pairs import coefficients_of, pair_contrast, pair_hinge, pair_hinge_sum, pair_lse
from robustdml_ops.ops.pairs.sweep import BACKENDS as PAIRS
from robustdml_ops.ops.similarity import nearest, similarity
from robustdml_ops.ops.similarity.backends import BACKENDS as SIMILARITY
from robustdml_ops.ops.vmf.fit import fit_vmf

# Sums of so few float32 terms stay within a few hundred roundings.
_FLOAT32, _BFLOAT16 = 2000 * torch.finfo(torch.float32).eps, 2.0**-4


class Inputs:
    """The arguments of all ops: the same numbers on every device, and in float64; X, P and kappa want gradients."""

    def __init__(self, type_of_rows: torch.dtype, few: bool, device: torch.device, exact: bool) -> None:
        self.B, self.C, self.D = B, C, D = (7, 19, 5) if few else (48, 300, 32)
        generator = torch.Generator("cpu").manual_seed(0)
        X, P = (torch.randn(rows, D, generator=generator, device="cpu").to(type_of_rows) for rows in (B, C))
        values = torch.rand(C, generator=generator, device="cpu").float()
        labels = torch.randint(C, (B,), generator=generator, device="cpu")
        if few:
            X[3], P[4], values[5] = X[1], P[2], values[6]
            labels.fill_(2)
        rows, numbers = (torch.float64, torch.float64) if exact else (type_of_rows, torch.float32)
        self.X, self.P = (matrix.to(device, rows).requires_grad_() for matrix in (X, P))
        self.values, self.labels = values.to(device, numbers), labels.to(device)
        self.kappa = (1 + 40 * self.values).requires_grad_()


Op: TypeAlias = Callable[[Inputs, str], Tensor | Sequence[Tensor]]
Ops: TypeAlias = Mapping[str, Op]


def _anchor(inputs: Inputs, backend: str) -> Tensor:
    bias, scale = inputs.values.new_full((inputs.B,), 3.2), inputs.values.new_full((), 1.0)
    terms = LabelSets.of(inputs.labels), anchor.AnchorBiases(bias, bias), scale, scale / inputs.C
    return anchor.anchor_loss(inputs.X, inputs.P, *terms, alpha=32.0, backend=backend)


def _classes(inputs: Inputs, backend: str) -> Tensor:
    lse, target = classes.class_lse(inputs.X, inputs.P, inputs.labels, scale=8.0, backend=backend)
    return (lse - target).mean()


def _pairs(function: Callable[..., Any], bank: bool = False, **settings: Any) -> Op:
    """Of a batch with itself, or with candidates."""

    def of_pairs(inputs: Inputs, backend: str) -> Tensor:
        others = (inputs.P, torch.arange(inputs.C, device=inputs.P.device) % 7) if bank else ()
        sums = function(inputs.X, inputs.labels % 7, *others, **settings, backend=backend)
        total: Tensor = (sums.positive + sums.negative).sum()
        return total

    return of_pairs


def _means(inputs: Inputs, backend: str) -> Tensor:
    """Of distances, which read the cosines of a batch twice."""
    one = inputs.values.new_ones(())
    settings: dict[str, Any] = {"positive_margin": 0.1, "negative_margin": 1.3, "distance": "euclidean"}
    pairs = (inputs.X, inputs.labels % 7, None, None)
    total: Tensor = pair_hinge_sum(*pairs, one, one, **settings, average=True, backend=backend)
    return total


def _contrast(form: str) -> Op:
    """A softmax or logistic loss, whose temperature is that of usual losses."""

    def of_form(inputs: Inputs, backend: str) -> Tensor:
        coefficients = coefficients_of(inputs.X, None, 9.0, -1.0 if form == "sigmoid" else 0.0)
        losses = pair_contrast(inputs.X, inputs.labels % 7, coefficients=coefficients, form=form, backend=backend)
        return losses.loss.sum()

    return of_form


def _of_kappa(function: Callable[..., Tensor], first: Callable[[int], float]) -> Op:
    return lambda inputs, backend: function(first(inputs.D), inputs.kappa, backend=backend).sum()


def _fit(inputs: Inputs, backend: str) -> list[Tensor]:
    counts = torch.arange(inputs.C, device=inputs.P.device) % 9  # some classes are empty
    fitted = fit_vmf(0.7 * counts[:, None] * unit_rows(inputs.P.detach()), counts, backend=backend)
    return [fitted.kappa, fitted.mean_direction]


def _rows(inputs: Inputs, backend: str) -> list[Tensor]:
    """The functions of rows, which no op has for itself."""
    rows, P, (C, D) = ROWS[backend], inputs.P.detach(), inputs.P.shape
    U, lengths = inputs.values.new_empty(C, D), inputs.values.new_empty(C)
    rows.normalize_rows(P, U, lengths)
    G = P.flip(0).to(U.dtype)
    rows.normalize_rows_backward(G, U, lengths)
    rows.scale(G, G.new_full((), 3.0))
    return [U, lengths, G]


def _with_gradients(op: Op, inputs: Inputs, backend: str) -> list[Tensor]:
    """The op's values, and their gradients where they have any."""
    values = op(inputs, backend)
    values = [values] if isinstance(values, Tensor) else list(values)
    if values[0].requires_grad:
        gradients = torch.autograd.grad(values[0], (inputs.X, inputs.P, inputs.kappa), allow_unused=True)
        values += [gradient for gradient in gradients if gradient is not None]
    return [value.detach() for value in values]


def register_cases(name: str, backends: Mapping[str, Any], usual: Ops, few: Ops, in_bfloat16: Ops) -> None:
    """Cases of ops at usual sizes in float32, at odd ones, and in bfloat16 where rounded cosines move no sum far."""

    def cases(ops: Ops, suffix: str, tolerance: float, *kind: Any) -> dict[str, Case]:
        inputs = partial(Inputs, *kind)
        return {of + suffix: Case(partial(_with_gradients, op), inputs, tolerance) for of, op in ops.items()}

    found = cases(usual, "", _FLOAT32, torch.float32, False) | cases(few, " of few", _FLOAT32, torch.float32, True)
    found |= cases(in_bfloat16, " in bfloat16", _BFLOAT16, torch.bfloat16, False)
    PRIMITIVES[id(backends)] = Primitive(name, backends, found)


_ANCHORS: Ops = {"anchor_loss": _anchor, "anchor_loss without gradients": torch.no_grad()(_anchor)}
_CLASSES: Ops = {"class_lse": _classes, "class_lse without gradients": torch.no_grad()(_classes)}
_PAIRS: dict[str, Op] = {
    "pair_lse": _pairs(pair_lse, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1),
    "pair_hinge": _pairs(pair_hinge, positive_margin=0.9, negative_margin=0.1),
    "pair_hinge of distances": _pairs(pair_hinge, positive_margin=0.1, negative_margin=1.3, distance="euclidean"),
    "pair_hinge of distances, means": _means,
    "pair_contrast": _contrast("outside"),
    "pair_contrast of each positive": _contrast("each"),
    "pair_contrast of logistic losses": _contrast("sigmoid"),
}
_PAIRS_OF_A_BANK: dict[str, Op] = {
    "pair_lse of a bank": _pairs(pair_lse, bank=True, alpha=2.0, beta=10.0, base=0.5),
    "pair_hinge of a bank": _pairs(pair_hinge, bank=True, positive_margin=1.5, negative_margin=-1.5),
}
_SIMILARITY: Ops = {
    "similarity": lambda inputs, backend: similarity(inputs.X, inputs.P, backend=backend).square().sum(),
    "nearest": lambda inputs, backend: nearest(inputs.X, inputs.P, 10, backend=backend).values,
}
_VMF: Ops = {
    "log_bessel_i": _of_kappa(vmf.log_bessel_i, lambda D: D / 2 - 1),
    "bessel_ratio": _of_kappa(vmf.bessel_ratio, lambda D: D / 2 - 1),
    "vmf_log_normalizer": _of_kappa(vmf.vmf_log_normalizer, lambda D: D),
    "vmf_log_peak": _of_kappa(vmf.vmf_log_peak, lambda D: D),
    "fit_vmf": _fit,
}
_OTSU: Ops = {
    "otsu_threshold": lambda inputs, backend: otsu.otsu_threshold(inputs.values, backend=backend).threshold,
    "otsu_confidence": lambda inputs, backend: otsu.otsu_confidence(inputs.values, 0.5, backend=backend)[0],
}
_LAMBERT_W: Ops = {
    "lambertw": lambda inputs, backend: lambert_w.lambertw(inputs.values, backend=backend),
    "confidence": lambda inputs, backend: lambert_w.confidence(inputs.values, 0.5, 0.5, backend=backend),
    "superloss": lambda inputs, backend: lambert_w.superloss(inputs.values, 0.5, 0.5, backend=backend),
}

_ALL_PAIRS = _PAIRS | _PAIRS_OF_A_BANK
register_cases("rows", ROWS, *[{"rows": _rows}] * 3)
register_cases("anchor", anchor.sweep.BACKENDS, *[_ANCHORS] * 3)
register_cases("classes", classes.backends.BACKENDS, *[_CLASSES] * 3)
register_cases("pairs", PAIRS, _ALL_PAIRS, _ALL_PAIRS, _PAIRS_OF_A_BANK)
register_cases("similarity", SIMILARITY, *[_SIMILARITY] * 3)
register_cases("vmf", vmf.backends.BACKENDS, _VMF, {}, {})
register_cases("otsu", otsu.backends.BACKENDS, _OTSU, _OTSU, {})
register_cases("lambert_w", lambert_w.backends.BACKENDS, _LAMBERT_W, _LAMBERT_W, {})
