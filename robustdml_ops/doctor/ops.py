"""Every op on every backend and device: which one serves, and how far from float64."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from robustdml_ops import anchor, classes, lambert_w, ops, otsu, pairs, self_paced, similarity, vmf
from robustdml_ops.backends import UNAVAILABLE, preference
from robustdml_ops.doctor.finding import Finding

B, C, D = 48, 300, 32
Results = tuple[Tensor, ...]
# Errors of the largest value, in units of the type's rounding: sums of so many float32 terms are within a few hundred.
_MOST = 2000
_REDUCED = 2.0**-6  # with operands of bfloat16 or TF32


def _with_gradients(value: Callable[..., Tensor], *inputs: Tensor) -> Results:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    result = value(*leaves)
    return (result.detach(), *torch.autograd.grad(result, leaves))


def _anchor(given: "Given", backend: str) -> Results:
    bias, scale = given.X.new_full((B,), 3.2), given.X.new_full((), 1.0)
    sets, biases = ops.LabelSets.of(given.labels), ops.AnchorBiases(bias, bias)
    return _with_gradients(
        lambda X, P: ops.anchor_loss(X, P, sets, biases, scale, scale / C, alpha=32.0, backend=backend),
        given.X,
        given.P,
    )


def _classes(given: "Given", backend: str) -> Results:
    def value(X: Tensor, P: Tensor) -> Tensor:
        lse, target = ops.class_lse(X, P, given.labels, scale=8.0, backend=backend)
        return (lse - target).mean()

    return _with_gradients(value, given.X, given.P)


def _pairs(given: "Given", backend: str) -> Results:
    def value(X: Tensor) -> Tensor:
        sums = ops.pair_lse(X, given.labels % 7, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1, backend=backend)
        return (sums.positive + sums.negative).sum()

    return _with_gradients(value, given.X)


def _similarity(given: "Given", backend: str) -> Results:
    return (ops.similarity(given.X, given.P, backend=backend),)


def _vmf(given: "Given", backend: str) -> Results:
    return (ops.vmf_log_normalizer(D, given.values * 40, backend=backend),)


def _otsu(given: "Given", backend: str) -> Results:
    return (ops.otsu_threshold(given.values, backend=backend).threshold,)


def _lambert_w(given: "Given", backend: str) -> Results:
    return (ops.lambertw(given.values, backend=backend),)


class Given:
    """Inputs of all ops, of one type on one device, the same numbers whatever those are."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        self.X = torch.randn(B, D, generator=generator).to(device, dtype)
        self.P = torch.randn(C, D, generator=generator).to(device, dtype)
        self.values = torch.rand(C, generator=generator).to(device, dtype)
        self.labels = torch.randint(C, (B,), generator=generator).to(device)


# The rooms with a table of backends, each with an op of it.
ROOMS: dict[str, tuple[Mapping[str, Any], Callable[[Given, str], Results] | None]] = {
    "anchor": (anchor.sweep.BACKENDS, _anchor),
    "classes": (classes.sweep.BACKENDS, _classes),
    "pairs": (pairs.sweep.BACKENDS, _pairs),
    "similarity": (similarity.sweep.BACKENDS, _similarity),
    "vmf": (vmf.autograd.BACKENDS, _vmf),
    "otsu": (otsu.BACKENDS, _otsu),
    "lambert_w": (lambert_w.autograd.BACKENDS, _lambert_w),
    "self_paced": (self_paced.BACKENDS, None),  # random by design; its backends give the same bits, which a test holds
}


def served(device: torch.device) -> list[Finding]:
    """What serves each room on ``device``, why the others do not, and how exact each is."""
    return [_backends(device), *(_room(room, device) for room in ROOMS)]


def _backends(device: torch.device) -> Finding:
    """The backends that can run on ``device``, in the order in which they are tried, and why the others can't."""
    reasons = {name: reason(device, torch.float32) for name, reason in UNAVAILABLE.items()}
    able = [name for name in preference(device) if reasons[name] is None]
    unable = {name: reason for name, reason in reasons.items() if reason is not None}
    told = ", then ".join(able) + "".join(f"; not {name}: {reason}" for name, reason in unable.items())
    return Finding(f"backends on {device.type}", told, facts={"able": able, "unable": unable})


def _room(room: str, device: torch.device) -> Finding:
    table, op = ROOMS[room]
    able = [name for name in preference(device) if name in table and UNAVAILABLE[name](device, torch.float32) is None]
    facts: dict[str, Any] = {"serves": able[0], "able": able, "errors": {}}
    told, wrong = f"{able[0]} serves", []
    if op is not None:
        exact = op(Given(torch.device("cpu"), torch.float64), "eager")
        for name in able:
            error = _error(op, name, device, exact)
            facts["errors"][name] = error
            if isinstance(error, str) or not error <= _tolerance(device):
                wrong.append(f"{name}: {error}")
        told += "; from float64: " + ", ".join(f"{name} {_written(error)}" for name, error in facts["errors"].items())
    way_out = None
    if wrong:
        way_out = f"set ROBUSTDML_BACKEND=eager, and report it with this output: {'; '.join(wrong)}"
    return Finding(f"{room} on {device.type}", told, way_out, facts)


def _tolerance(device: torch.device) -> float:
    # A card may multiply float32 by TF32, if PyTorch is set to.
    return _REDUCED if device.type == "cuda" else _MOST * torch.finfo(torch.float32).eps


def _error(op: Callable[[Given, str], Results], backend: str, device: torch.device, exact: Results) -> float | str:
    """Largest difference of all results, each against its own largest value; or what the op said."""
    try:
        found = op(Given(device, torch.float32), backend)
    except Exception as error:  # whatever ails a backend is what is asked for
        return f"{type(error).__name__}: {error}".splitlines()[0]
    errors = [
        float((mine.double().cpu() - true).abs().max() / true.abs().max().clamp(min=1e-300))
        for mine, true in zip(found, exact, strict=True)
    ]
    return max(errors)


def _written(error: float | str) -> str:
    return "fails" if isinstance(error, str) else f"{error:.0e}"
