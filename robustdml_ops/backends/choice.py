"""Which backend runs an operation: ``native`` (C++ and CUDA), ``triton``, or ``eager`` (plain PyTorch)."""

import os
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

import torch

from robustdml_ops.backends import native_module, triton_device, trust
from robustdml_ops.backends.cards import card
from robustdml_ops.backends.tracing import refuse_tracing

BackendT = TypeVar("BackendT")

# Why a backend can't serve a device in a compute type, or None.
UNAVAILABLE: dict[str, Callable[[torch.device, torch.dtype], str | None]] = {
    "native": native_module.unavailable,
    "triton": triton_device.unavailable,
    "eager": lambda device, dtype: None,
}

# Fastest first, elsewhere than on CUDA devices, of which ``cards.json`` has the order.
PREFERENCE: dict[str, tuple[str, ...]] = {"cpu": ("native", "eager")}


def preference(device: torch.device) -> tuple[str, ...]:
    """The backends that may serve ``device``, fastest first. What is measured and why: docs/performance.md."""
    return card(device).backends if device.type == "cuda" else PREFERENCE.get(device.type, ("eager",))


def choose(table: Mapping[str, BackendT], backend: str | None, device: torch.device, dtype: torch.dtype) -> BackendT:
    """Return the backend that serves tensors on ``device`` with compute type ``dtype``."""
    refuse_tracing()
    explicit = backend not in (None, "auto")
    name = backend if explicit else os.environ.get("ROBUSTDML_BACKEND", "auto")
    assert name is not None
    if name != "auto" and name not in UNAVAILABLE:
        raise ValueError(f"backend={name!r}: expected one of {', '.join(UNAVAILABLE)} or auto")
    if name in table or (explicit and name != "auto"):
        reason = _refusal(table, name, device, dtype) if name in table else f"it has {' and '.join(table)} alone"
        if reason is not None:
            raise RuntimeError(f"backend={name!r} can't run here: {reason}. Use backend='auto' to take what can.")
        return table[name]
    for candidate in preference(device):
        if candidate not in table:
            continue
        reason = _refusal(table, candidate, device, dtype)
        if reason is None:
            break
        _tell_once(f"robustdml_ops: {candidate} can't serve {device.type}: {reason}")
    return table[candidate]


def _refusal(table: Mapping[str, object], name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the backend can't serve, or None."""
    reason = UNAVAILABLE[name](device, dtype)
    return trust.distrusted(table, name, device) if reason is None and device.type in trust.CHECKED else reason


@cache
def _tell_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
