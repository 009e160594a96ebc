"""Cases of the ops for :mod:`robustdml_ops.backends.trust`: on a device by a backend, or on the CPU in float64."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import exact_float32_products
from robustdml_ops.backends.trust import Case, add_room
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.rows.backends import BACKENDS as ROWS
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.ops import anchor, classes, lambert_w, otsu, vmf
from robustdml_ops.ops.pairs.contrast import coefficients_of, pair_contrast
from robustdml_ops.ops.pairs.hinge import pair_hinge, pair_hinge_sum
from robustdml_ops.ops.pairs.lse import pair_lse
from robustdml_ops.ops.pairs.sweep import BACKENDS as PAIRS
from robustdml_ops.ops.similarity import nearest, similarity
from robustdml_ops.ops.similarity.backends import BACKENDS as SIMILARITY
from robustdml_ops.ops.vmf.fit import fit_vmf

# Sums of this many float32 terms stay within a few hundred roundings; operands of TF32, and of bfloat16.
_MOST, _TF32, _BF16 = 2000 * torch.finfo(torch.float32).eps, 2.0**-6, 2.0**-4


class Inputs:
    """The arguments of all ops: the same numbers on every device, and in float64; X, P and kappa want gradients."""

    def __init__(self, device: torch.device, dtype: torch.dtype, given: torch.dtype, small: bool = False) -> None:
        self.B, self.C, self.D = B, C, D = (7, 19, 5) if small else (48, 300, 32)
        generator = torch.Generator("cpu").manual_seed(0)
        X, P = (torch.randn(rows, D, generator=generator, device="cpu") for rows in (B, C))
        values = torch.rand(C, generator=generator, device="cpu").float()
        labels = torch.randint(C, (B,), generator=generator, device="cpu")
        if small:
            X[3], P[4], values[5] = X[1], P[2], values[6]
            labels.fill_(2)
        self.X, self.P = (rows.to(given).to(device, dtype).requires_grad_() for rows in (X, P))
        self.values, self.labels = values.to(device, torch.promote_types(dtype, torch.float32)), labels.to(device)
        self.kappa = (1 + 40 * self.values).requires_grad_()


Op: TypeAlias = Callable[[Inputs, str], Tensor | Sequence[Tensor]]


def _anchor(inputs: Inputs, backend: str) -> Tensor:
    bias, scale = inputs.values.new_full((inputs.B,), 3.2), inputs.values.new_full((), 1.0)
    sets, biases = LabelSets.of(inputs.labels), anchor.AnchorBiases(bias, bias)
    scales = scale, scale / inputs.C
    return anchor.anchor_loss(inputs.X, inputs.P, sets, biases, *scales, alpha=32.0, backend=backend)


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


def _case(op: Op, given: torch.dtype, small: bool) -> Case:
    """The op's values, and their gradients where they have any."""

    def results(device: torch.device, backend: str, exact: bool) -> list[Tensor]:
        inputs = Inputs(device, torch.float64 if exact else given, given, small)
        values = op(inputs, backend)
        values = [values] if isinstance(values, Tensor) else list(values)
        if values[0].requires_grad:
            gradients = torch.autograd.grad(values[0], (inputs.X, inputs.P, inputs.kappa), allow_unused=True)
            values += [gradient for gradient in gradients if gradient is not None]
        return [value.detach() for value in values]

    def tolerance(device: torch.device) -> float:
        return _BF16 if given == torch.bfloat16 else _MOST if exact_float32_products(device) else _TF32

    return Case(results, tolerance)


def cases(usual: Mapping[str, Op], few: Mapping[str, Op], in_bfloat16: Mapping[str, Op]) -> dict[str, Case]:
    """Of ops by name: at usual sizes in float32, at odd ones, and in bfloat16 where rounded cosines move no sum far."""
    found = {name: _case(op, torch.float32, False) for name, op in usual.items()}
    found |= {f"{name} of few": _case(op, torch.float32, True) for name, op in few.items()}
    return found | {f"{name} in bfloat16": _case(op, torch.bfloat16, False) for name, op in in_bfloat16.items()}


_ANCHORS: dict[str, Op] = {"anchor_loss": _anchor, "anchor_loss without gradients": torch.no_grad()(_anchor)}
_CLASSES: dict[str, Op] = {"class_lse": _classes, "class_lse without gradients": torch.no_grad()(_classes)}
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
_SIMILARITY: dict[str, Op] = {
    "similarity": lambda inputs, backend: similarity(inputs.X, inputs.P, backend=backend).square().sum(),
    "nearest": lambda inputs, backend: nearest(inputs.X, inputs.P, 10, backend=backend).values,
}
_VMF: dict[str, Op] = {
    "log_bessel_i": _of_kappa(vmf.log_bessel_i, lambda D: D / 2 - 1),
    "bessel_ratio": _of_kappa(vmf.bessel_ratio, lambda D: D / 2 - 1),
    "vmf_log_normalizer": _of_kappa(vmf.vmf_log_normalizer, lambda D: D),
    "vmf_log_peak": _of_kappa(vmf.vmf_log_peak, lambda D: D),
    "fit_vmf": _fit,
}
_OTSU: dict[str, Op] = {
    "otsu_threshold": lambda inputs, backend: otsu.otsu_threshold(inputs.values, backend=backend).threshold,
    "otsu_confidence": lambda inputs, backend: otsu.otsu_confidence(inputs.values, 0.5, backend=backend)[0],
}
_LAMBERT_W: dict[str, Op] = {
    "lambertw": lambda inputs, backend: lambert_w.lambertw(inputs.values, backend=backend),
    "confidence": lambda inputs, backend: lambert_w.confidence(inputs.values, 0.5, 0.5, backend=backend),
    "superloss": lambda inputs, backend: lambert_w.superloss(inputs.values, 0.5, 0.5, backend=backend),
}


def add_rooms() -> None:
    """Give the cases of every room."""
    rows, pairs = {"rows": _rows}, _PAIRS | _PAIRS_OF_A_BANK
    add_room("rows", ROWS, cases(rows, rows, rows))
    add_room("anchor", anchor.sweep.BACKENDS, cases(_ANCHORS, _ANCHORS, _ANCHORS))
    add_room("classes", classes.sweep.BACKENDS, cases(_CLASSES, _CLASSES, _CLASSES))
    add_room("pairs", PAIRS, cases(pairs, pairs, _PAIRS_OF_A_BANK))
    add_room("similarity", SIMILARITY, cases(_SIMILARITY, _SIMILARITY, _SIMILARITY))
    add_room("vmf", vmf.backends.BACKENDS, cases(_VMF, {}, {}))
    add_room("otsu", otsu.backends.BACKENDS, cases(_OTSU, _OTSU, {}))
    add_room("lambert_w", lambert_w.backends.BACKENDS, cases(_LAMBERT_W, _LAMBERT_W, {}))
