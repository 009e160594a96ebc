"""Every kernel of a backend once, at odd sizes: ``python -m bench.gpu.kernels_once triton cuda``."""

import contextlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch

from robustdml_ops import ops
from robustdml_ops.backends import native_module
from robustdml_ops.backends.choice import UNAVAILABLE

from ..shapes import Shape
from .losses import CASES
from .machine import ROOT

ODD = Shape(33, 65, 40)


def calls(device: torch.device) -> list[Callable[[], object]]:
    """Losses with their gradients, and what no loss asks for: fused forwards, solvers, the matrix itself."""
    X, P, y = (
        torch.randn(ODD.B, ODD.D, device=device),
        torch.randn(ODD.C, ODD.D, device=device),
        torch.arange(ODD.B, device=device) % ODD.C,
    )
    zeros, values = torch.zeros(ODD.B, device=device), torch.rand(99, device=device)
    sets = ops.LabelSets.of(y)

    def loss(name: str) -> Callable[[], object]:
        def run() -> None:
            case = CASES[name]
            rows, given = case.inputs(ODD)
            leaf = rows.to(device).requires_grad_()
            moved = {key: value.to(device) for key, value in given.items()}
            case.make(ODD).to(device)(**{case.argument: leaf}, **moved).backward()

        return run

    return [
        *map(loss, CASES),
        lambda: ops.anchor_lse(X, P, sets, ops.AnchorBiases(zeros, zeros), alpha=32.0),
        lambda: ops.class_lse(X, P, y, scale=2.0),
        lambda: ops.similarity(X, P),
        lambda: ops.nearest(X, P, k=3),
        lambda: ops.otsu_threshold(values),
        lambda: ops.confidence(values, threshold=0.5, lam=1.0),
        lambda: ops.lambertw(values),
        lambda: ops.vmf_log_normalizer(ODD.D, 100 * values),
    ]


def emulated() -> Path:
    """The native module whose CUDA kernels are compiled for the host, where the tests have built it."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    return ROOT / "build" / f"emulated-{sys.implementation.cache_tag}" / f"_native{suffix}"


def emulate() -> None:
    """Take tensors of the CPU to it, as the tests do."""
    spec = importlib.util.spec_from_file_location("emulated._native", emulated())
    assert spec is not None
    assert spec.loader is not None
    native_module.library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native_module.library)
    native_module.current_stream = lambda device: contextlib.nullcontext(0)
    native_module.on_gpu = lambda tensor: True


def main(backend: str, name: str) -> None:
    """Run them on "cuda", "cpu" or "emulated", with the backend asked for by name."""
    if name == "emulated":
        emulate()
    device = torch.device("cpu" if name == "emulated" else name)
    reason = UNAVAILABLE[backend](device, torch.float32)
    if reason is not None:
        sys.exit(f"{backend}: {reason}")
    os.environ["ROBUSTDML_BACKEND"] = backend
    for call in (made := calls(device)):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"{len(made)} calls")


if __name__ == "__main__":
    main(*sys.argv[1:])
