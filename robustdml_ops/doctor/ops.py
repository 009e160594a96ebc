"""Which backend serves each op on a device, how far its results are from float64, and how fast Proxy-Anchor is."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

import robustdml_ops.robust  # noqa: F401, which registers its cases
from robustdml_ops.backends import self_check
from robustdml_ops.backends.dispatch import UNAVAILABLE, preference
from robustdml_ops.doctor.machine import Finding
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.ops.anchor.sweep import BACKENDS

B, C, D = 256, 20_000, 128
SECONDS = 1.0
# Measured on a machine at rest: 1.0 to 1.1 native, about 4 eager.
_MOST = {"native": 1.6, "eager": 8.0}


def served(device: torch.device) -> list[Finding]:
    """A finding for the backends on ``device``, and one for each primitive."""
    checks = {p.name: partial(_primitive, p, device) for p in self_check.PRIMITIVES.values()}
    return [_backends(device), *(Finding.of(f"{name} on {device.type}", check) for name, check in checks.items())]


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


def _primitive(primitive: self_check.Primitive, device: torch.device) -> Finding:
    """The errors of the primitive's backends; on a GPU also the verdicts of the self-check, which are made anew."""
    names, checked = able(device, primitive.backends), device.type in self_check.CHECKED
    results = {name: self_check.run_cases(primitive, name, device) for name in names}
    errors = {name: {case: one.error for case, one in outcomes.items()} for name, outcomes in results.items()}
    failures = [
        (name, f"{case} by {name}: {one.failure}")
        for name, outcomes in results.items()
        for case, one in outcomes.items()
        if one.failure is not None
    ]
    bad = {name for name, _ in failures}
    serves = next((name for name in names if name not in bad), names[-1]) if checked else names[0]
    told = f"{serves} serves"
    if primitive.cases:
        told += f"; {', '.join(case for case in primitive.cases if ' ' not in case)} from float64: "
        told += ", ".join(f"{name} fails" if name in bad else f"{name} {_largest(errors[name]):.0e}" for name in names)
    others = {name: "it has no kernels for this" for name in UNAVAILABLE if name not in primitive.backends}
    told += "".join(f"; not {name}: {reason}" for name, reason in others.items() if name in able(device, UNAVAILABLE))
    if checked:
        for name in set(names) - {"eager"}:
            self_check.store(primitive, name, device, results[name])
    facts = {"serves": serves, "able": names, "errors": errors, "others": others}
    return Finding(f"{primitive.name} on {device.type}", told, _way_out(failures), facts)


def _largest(errors: Mapping[str, float | str]) -> float:
    return max((float(error) for case, error in errors.items() if "bfloat16" not in case), default=0.0)


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


def sweep_against_products(device: torch.device) -> Finding:
    """Time a step of Proxy-Anchor and its products in turn, on ``backend`` or on the one that serves the device."""
    backend: Any = able(device, BACKENDS)[0]
    torch.manual_seed(0)
    loss = ProxyAnchorLoss(C, D, backend=backend).to(device)
    X, y = torch.randn(B, D, device=device, requires_grad=True), torch.randint(C, (B,), device=device)
    P, S = loss.proxies.detach(), torch.empty(C, B, device=device)
    unit, dP = torch.nn.functional.normalize(X.detach()), torch.empty_like(P)

    def step() -> None:
        X.grad = loss.proxies.grad = None
        loss(X, y).backward()

    def products() -> None:
        torch.mm(P, unit.t(), out=S)
        torch.mm(S, unit, out=dP)
        S.t() @ P

    ours, floor = _turn_by_turn(step, products, device)
    ratio = ours / floor
    facts = {"backend": backend, "seconds": ours, "products": floor, "ratio": ratio}
    told = f"{backend}, B={B} C={C} D={D}: {1e3 * ours:.1f} ms, {ratio:.2f} of its products"
    most, way_out = _MOST.get(backend), None
    if device.type == "cpu" and most is not None and ratio > most:
        way_out = f"more than {most}: see above whether the machine is busy"
    return Finding(f"speed on {device.type}", told, way_out, facts, slows=True)


def _turn_by_turn(step: Callable[[], None], products: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Median seconds of each, without the first two rounds."""
    times: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    while len(times[0]) < 5 or (time.perf_counter() - begin < SECONDS and len(times[0]) < 200):
        for function, seconds in zip((step, products), times, strict=True):
            start = time.perf_counter()
            function()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - start)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])
