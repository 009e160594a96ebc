"""Which backend serves each op on a device, and how far its results are from float64."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops import ops
from robustdml_ops.backends.choice import UNAVAILABLE, preference
from robustdml_ops.doctor.finding import Finding
from robustdml_ops.ops import anchor, classes, lambert_w, otsu, pairs, self_paced, vmf
from robustdml_ops.ops.similarity.backends import BACKENDS as SIMILARITY_BACKENDS

B, C, D = 48, 300, 32
# Tolerances relative to the largest value. Sums of this many float32 terms stay within a few hundred roundings.
_MOST = 2000 * torch.finfo(torch.float32).eps
_REDUCED = 2.0**-6  # with TF32 operands


class Inputs:
    """The arguments of all ops, the same numbers in every type and on every device; X, P and kappa want gradients."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self.X = torch.randn(B, D, generator=generator).to(device, dtype).requires_grad_()
        self.P = torch.randn(C, D, generator=generator).to(device, dtype).requires_grad_()
        self.values = torch.rand(C, generator=generator).to(device, dtype)
        self.labels = torch.randint(C, (B,), generator=generator).to(device)
        self.kappa = (1 + 40 * self.values).requires_grad_()


_Op = Callable[[Inputs, str], Tensor]


def _anchor(inputs: Inputs, backend: str) -> Tensor:
    bias, scale = inputs.X.new_full((B,), 3.2), inputs.X.new_full((), 1.0)
    sets, biases = ops.LabelSets.of(inputs.labels), ops.AnchorBiases(bias, bias)
    return ops.anchor_loss(inputs.X, inputs.P, sets, biases, scale, scale / C, alpha=32.0, backend=backend)


def _classes(inputs: Inputs, backend: str) -> Tensor:
    lse, target = ops.class_lse(inputs.X, inputs.P, inputs.labels, scale=8.0, backend=backend)
    return (lse - target).mean()


def _pairs(function: Callable[..., Any], **settings: float) -> _Op:
    def of_pairs(inputs: Inputs, backend: str) -> Tensor:
        sums = function(inputs.X, inputs.labels % 7, **settings, backend=backend)
        total: Tensor = (sums.positive + sums.negative).sum()
        return total

    return of_pairs


def _of_kappa(function: Callable[..., Tensor], first: float) -> _Op:
    return lambda inputs, backend: function(first, inputs.kappa, backend=backend).sum()


# Each room: its backends by name, and its ops.
ROOMS: dict[str, tuple[Mapping[str, Any], Mapping[str, _Op]]] = {
    "anchor": (anchor.sweep.BACKENDS, {"anchor_loss": _anchor}),
    "classes": (classes.sweep.BACKENDS, {"class_lse": _classes}),
    "pairs": (
        pairs.sweep.BACKENDS,
        {
            "pair_lse": _pairs(ops.pair_lse, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1),
            "pair_hinge": _pairs(ops.pair_hinge, positive_margin=0.9, negative_margin=0.1),
        },
    ),
    "similarity": (
        SIMILARITY_BACKENDS,
        {
            "similarity": lambda inputs, backend: ops.similarity(inputs.X, inputs.P, backend=backend).square().sum(),
            "nearest": lambda inputs, backend: ops.nearest(inputs.X, inputs.P, 10, backend=backend).values,
        },
    ),
    "vmf": (
        vmf.backends.BACKENDS,
        {
            "log_bessel_i": _of_kappa(ops.log_bessel_i, D / 2 - 1),
            "bessel_ratio": _of_kappa(ops.bessel_ratio, D / 2 - 1),
            "vmf_log_normalizer": _of_kappa(ops.vmf_log_normalizer, D),
            "vmf_log_peak": _of_kappa(ops.vmf_log_peak, D),
        },
    ),
    "otsu": (
        otsu.backends.BACKENDS,
        {
            "otsu_threshold": lambda inputs, backend: ops.otsu_threshold(inputs.values, backend=backend).threshold,
            "otsu_confidence": lambda inputs, backend: ops.otsu_confidence(inputs.values, 0.5, backend=backend)[0],
        },
    ),
    "lambert_w": (
        lambert_w.backends.BACKENDS,
        {
            "lambertw": lambda inputs, backend: ops.lambertw(inputs.values, backend=backend),
            "confidence": lambda inputs, backend: ops.confidence(inputs.values, 0.5, 0.5, backend=backend),
            "superloss": lambda inputs, backend: ops.superloss(inputs.values, 0.5, 0.5, backend=backend),
        },
    ),
    # No float64 reference: the draws are random, and a test holds that all backends give the same bits.
    "self_paced": (self_paced.BACKENDS, {}),
}


def served(device: torch.device) -> list[Finding]:
    """A finding for the backends on ``device``, and one for each room."""
    rooms = [Finding.of(f"{room} on {device.type}", partial(_room, room, device)) for room in ROOMS]
    return [_backends(device), *rooms]


def _backends(device: torch.device) -> Finding:
    """The backends that can run on ``device``, in order of preference, and why the others can't."""
    names = able(device, UNAVAILABLE)
    unable = {name: reason for name, why in UNAVAILABLE.items() if (reason := why(device, torch.float32))}
    told = ", then ".join(names) + "".join(f"; not {name}: {reason}" for name, reason in unable.items())
    asked = os.environ.get("ROBUSTDML_BACKEND")
    facts, way_out = {"able": names, "unable": unable, "asked_for": asked}, None
    if asked and asked != "auto" and asked not in names:
        way_out = f"ROBUSTDML_BACKEND={asked} can't be had: unset it, or name one of {', '.join(names)}"
    return Finding(f"backends on {device.type}", told, way_out, facts)


def _room(room: str, device: torch.device) -> Finding:
    table, ops_of_room = ROOMS[room]
    names = able(device, table)
    errors: dict[str, dict[str, float | str]] = {name: {} for name in names}
    for op_name, op in ops_of_room.items():
        exact = _results(op, Inputs(torch.device("cpu"), torch.float64), "eager")
        for name in names:
            errors[name][op_name] = _error(op, name, device, exact)
    told = f"{names[0]} serves"
    if ops_of_room:
        told += f"; {', '.join(ops_of_room)} from float64: "
        for name, found in errors.items():
            fails = any(isinstance(error, str) for error in found.values())
            told += f"{name} fails, " if fails else f"{name} {max(map(float, found.values())):.0e}, "
        told = told.removesuffix(", ")
    others = {name: "it has no kernels for this" for name in UNAVAILABLE if name not in table}
    told += "".join(f"; not {name}: {reason}" for name, reason in others.items() if name in able(device, UNAVAILABLE))
    most = _REDUCED if device.type == "cuda" else _MOST  # PyTorch may be set to multiply in TF32 on a GPU
    wrong = [
        (name, f"{op_name} by {name}: {error}")
        for name, found in errors.items()
        for op_name, error in found.items()
        if isinstance(error, str) or not error <= most
    ]
    facts = {"serves": names[0], "able": names, "errors": errors, "others": others}
    return Finding(f"{room} on {device.type}", told, _way_out(wrong), facts)


def able(device: torch.device, table: Mapping[str, Any]) -> list[str]:
    """The backends of ``table`` that can run on ``device``, in order of preference."""
    return [name for name in preference(device) if name in table and not UNAVAILABLE[name](device, torch.float32)]


def _way_out(wrong: list[tuple[str, str]]) -> str | None:
    if not wrong:
        return None
    told = "; ".join(text for _, text in wrong)
    # A function is missing in the module, or takes other arguments.
    if all(name == "native" and ("AttributeError" in text or "TypeError" in text) for name, text in wrong):
        return f"the native module is of another version of this package: reinstall the package ({told})"
    return f"set ROBUSTDML_BACKEND=eager, and report it with this output: {told}"


def _results(op: _Op, inputs: Inputs, backend: str) -> list[Tensor]:
    """The op's value, and its gradients where it has any."""
    value = op(inputs, backend)
    if not value.requires_grad:
        return [value]
    gradients = torch.autograd.grad(value, (inputs.X, inputs.P, inputs.kappa), allow_unused=True)
    return [value.detach(), *(gradient for gradient in gradients if gradient is not None)]


def _error(op: _Op, backend: str, device: torch.device, exact: list[Tensor]) -> float | str:
    """Largest error of the op's results, each relative to its largest value; or the message of its exception."""
    try:
        found = _results(op, Inputs(device, torch.float32), backend)
    except Exception as error:  # any failure of the backend is the result
        return f"{type(error).__name__}: {error}".splitlines()[0]
    errors = [
        float((mine.double().cpu() - true).abs().max() / true.abs().max().clamp(min=1e-300))
        for mine, true in zip(found, exact, strict=True)
    ]
    return max(errors)
