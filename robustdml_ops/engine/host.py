"""Who runs what is sequential: on the host, whatever the device of the model."""

import os
from typing import Protocol

import torch
from torch import Tensor

from robustdml_ops.engine import eager, native
from robustdml_ops.engine.dispatch import EPILOGUES, choose
from robustdml_ops.engine.self_paced import SelfPacedSweep, SelfPacedTerms

_CPU = torch.device("cpu")


class HostSolver(Protocol):
    """What a backend provides on the host."""

    def self_paced_sweep(self, terms: SelfPacedTerms, weights: Tensor, settings: SelfPacedSweep) -> None:
        """Algorithm 3 of self-paced metric learning, in place: the same bits from every backend."""


HOST_SOLVERS: dict[str, HostSolver] = {"native": native, "eager": eager}


def choose_host(backend: str | None, dtype: torch.dtype) -> HostSolver:
    """As :func:`robustdml_ops.engine.dispatch.choose`, of ``"native"`` and ``"eager"``.

    A ``ROBUSTDML_BACKEND`` that names the kernels of a GPU leaves the host free to choose.
    """
    if backend == "triton":
        raise RuntimeError("backend='triton' can't run here: this is sequential work of the host. Use backend='auto'.")
    if backend in (None, "auto") and os.environ.get("ROBUSTDML_BACKEND") == "triton":
        return eager if native.unavailable(_CPU, dtype) else native
    chosen = choose(backend, _CPU, dtype)
    return next(solver for name, solver in HOST_SOLVERS.items() if EPILOGUES[name] is chosen)
