"""Otsu's cut, and the confidences that follow from it, by the backend that serves the device."""

import torch
from torch import Tensor

from robustdml_ops.engine.dispatch import Epilogue, choose
from robustdml_ops.engine.otsu_cut import OtsuCut


def cut(values: Tensor, min_group: int, backend: str | None) -> OtsuCut:
    """Cut every row of ``values`` (..., n), float64 or float32, into groups of ``min_group`` at least.

    ``backend`` and errors as in :func:`robustdml_ops.engine.dispatch.choose`. Not differentiable.
    """
    return _cut(choose(backend, values.device, values.dtype), values, min_group)


def threshold_and_confidence(losses: Tensor, min_group: int, lam: float, backend: str | None) -> tuple[Tensor, Tensor]:
    """Threshold () of one batch ``losses`` (n,) as :func:`cut` finds it, and ProcSim's confidence (n,) in each loss."""
    epilogue = choose(backend, losses.device, losses.dtype)
    both = epilogue.otsu_confidence(losses, min_group, lam)
    if both is None:
        threshold = _cut(epilogue, losses, min_group).threshold
        both = threshold, epilogue.confidence(losses, threshold, lam)
    return both


def _cut(epilogue: Epilogue, values: Tensor, min_group: int) -> OtsuCut:
    if values.shape[-1] > 0:
        return epilogue.otsu_cut(values, min_group)
    # A NaN is left out: what remains is a row without values.
    cut = epilogue.otsu_cut(values.new_full((*values.shape[:-1], 1), torch.nan), min_group)
    return cut._replace(excluded=torch.zeros_like(cut.excluded))
