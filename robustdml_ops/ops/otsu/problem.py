"""The result of a cut, buffers for it, and the interface of the backends."""

from typing import NamedTuple

import torch
from torch import Tensor


class OtsuCut(NamedTuple):
    """A threshold per row, all tensors without the last dimension of the values; low are those ``<= threshold``."""

    threshold: Tensor  # float64 or float32; ∞ where there is no cut
    index: Tensor  # type: ignore[assignment]  # int64: number of finite values in the low group
    low_mean: Tensor  # as threshold; both are the mean of all finite values where there is no cut
    high_mean: Tensor  # as threshold
    found: Tensor  # bool
    excluded: Tensor  # int64: number of NaN and infinities, which are left out


def empty_cut(values: Tensor) -> OtsuCut:
    """Buffers for the cuts of ``values`` (..., n)."""
    shape, device = values.shape[:-1], values.device
    threshold, low_mean, high_mean = (torch.empty(shape, dtype=values.dtype, device=device) for _ in range(3))
    index, excluded = (torch.empty(shape, dtype=torch.int64, device=device) for _ in range(2))
    found = torch.empty(shape, dtype=torch.bool, device=device)
    return OtsuCut(threshold, index, low_mean, high_mean, found, excluded)


class OtsuBackend:
    """The functions of a backend."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        """Best cut of every row of ``values`` (..., n ≥ 1), float64 or float32; groups hold ``min_group`` at least."""
        raise NotImplementedError

    def otsu_confidence(self, losses: Tensor, min_group: int, lam: float) -> tuple[Tensor, Tensor] | None:
        """Threshold () and ProcSim's confidences (n,) of ``losses`` (n,); None: not fused in this backend."""
