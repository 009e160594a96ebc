"""Which backend serves which device: one table, one environment variable, and a reason for every refusal."""

import os
import warnings
from typing import Protocol

import torch
from torch import Tensor

from robustdml_ops.engine import eager, native, triton
from robustdml_ops.engine.class_problem import ClassChunk, ClassProblem, ClassSums, ClassUpstream
from robustdml_ops.engine.otsu_cut import OtsuCut
from robustdml_ops.engine.pairs import PairChunk, PairHingeProblem, PairLSEProblem
from robustdml_ops.engine.problem import AnchorChunk, AnchorProblem


class Epilogue(Protocol):
    """What a backend provides: the parts of the sweeps between the matrix products, and scalar functions."""

    def unavailable(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Why it can't run there, or None."""

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """U = P / |P| by rows."""

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """The Jacobian of the normalisation, in place."""

    def operand(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> Tensor:
        """What stands for the anchors P in the products: ``U``, filled with unit rows, or P itself."""

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor) -> None:
        """The Jacobian of the normalisation where the products ran on ``operand``'s V, in place."""

    def forward_only(self, X: Tensor, P: Tensor, problem: AnchorProblem) -> tuple[Tensor, Tensor] | None:
        """Both log-sum-exps at once where no gradient is asked for; None where the backend has no faster way."""

    def anchor_lse(self, chunk: AnchorChunk, problem: AnchorProblem) -> None:
        """Log-sum-exps of a chunk, and its gradient in its place."""

    def class_lse(self, chunk: ClassChunk, problem: ClassProblem, sums: ClassSums) -> None:
        """Add the classes of a chunk to the sums of each sample."""

    def class_lse_backward(self, chunk: ClassChunk, problem: ClassProblem, upstream: ClassUpstream) -> None:
        """The gradient of a chunk's similarities in their place."""

    def fused_class_lse(self, X: Tensor, P: Tensor, problem: ClassProblem, sums: ClassSums) -> bool:
        """Add all classes at once; False, and nothing done, where the backend has no faster way than the sweep."""

    def pair_lse(self, chunk: PairChunk, problem: PairLSEProblem) -> None:
        """Log-sum-exps over the positives and over the negatives of a chunk of anchors, and their gradient."""

    def pair_hinge(self, chunk: PairChunk, problem: PairHingeProblem) -> None:
        """Sums of hinges of a chunk of anchors, how many are above 0, and their gradient."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """A special function of the von Mises–Fisher distribution, see :mod:`robustdml_ops.engine.vmf`."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        """The best cut of every row, see :mod:`robustdml_ops.engine.otsu`."""

    def otsu_confidence(self, losses: Tensor, min_group: int, lam: float) -> tuple[Tensor, Tensor] | None:
        """Threshold and confidences at once; None where the backend has no faster way than one after the other."""

    def lambert_w(self, x: Tensor) -> Tensor:
        """Lambert's W; this and what follows: see :mod:`robustdml_ops.engine.lambert_w`."""

    def confidence(self, losses: Tensor, threshold: Tensor, lam: float) -> Tensor:
        """ProcSim's σ."""

    def superloss(self, losses: Tensor, tau: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """SuperLoss and its σ."""


EPILOGUES: dict[str, Epilogue] = {
    "native": native,
    "triton": triton,
    "eager": eager,
}

# Fastest first. What is measured and why: docs/performance.md.
PREFERENCE: dict[str, tuple[str, ...]] = {
    "cpu": ("native", "eager"),
    "cuda": ("triton", "native", "eager"),
}

_told: set[str] = set()


def choose(backend: str | None, device: torch.device, dtype: torch.dtype) -> Epilogue:
    """Return the epilogues for tensors on ``device`` with compute type ``dtype``.

    Parameters
    ----------
    backend : str or None
        ``"native"``, ``"triton"`` or ``"eager"``: that one or an error. ``"auto"`` or None: what ``ROBUSTDML_BACKEND``
        names, or else the first of :data:`PREFERENCE` that can run.

    Raises
    ------
    ValueError
        If the name is unknown.
    RuntimeError
        If the backend named can't run here; the message says why.
    """
    name = backend if backend not in (None, "auto") else os.environ.get("ROBUSTDML_BACKEND", "auto")
    if name != "auto":
        if name not in EPILOGUES:
            raise ValueError(f"backend={name!r}: expected one of {', '.join(EPILOGUES)} or auto")
        reason = EPILOGUES[name].unavailable(device, dtype)
        if reason is not None:
            raise RuntimeError(f"backend={name!r} can't run here: {reason}. Use backend='auto' to take what can.")
        return EPILOGUES[name]
    order = PREFERENCE.get(device.type, ("eager",))
    for candidate in order:
        reason = EPILOGUES[candidate].unavailable(device, dtype)
        if reason is None:
            break
        _tell_once(f"robustdml_ops: {candidate} can't serve {device.type}: {reason}")
    return EPILOGUES[candidate]


def _tell_once(message: str) -> None:
    if message not in _told:
        _told.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=4)
