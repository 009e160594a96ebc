"""The time of a step of Proxy-Anchor against the time of its three matrix products."""

import statistics
import time
from collections.abc import Callable

import torch

from robustdml_ops.doctor.finding import Finding
from robustdml_ops.doctor.ops import able
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.ops.anchor.sweep import BACKENDS

B, C, D = 256, 20_000, 128
SECONDS = 1.0
# Measured on a machine at rest: 1.0 to 1.1 native, about 4 eager.
_MOST = {"native": 1.6, "eager": 8.0}


def sweep_against_products(device: torch.device, backend: str | None = None) -> Finding:
    """Time a step and its products alone in turn, on ``backend`` or on the one that serves the device."""
    backend = backend or able(device, BACKENDS)[0]
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
