"""Otsu's cut in Triton: a program a row, in one launch."""

from torch import Tensor

from robustdml_ops.engine.eager import otsu as eager
from robustdml_ops.engine.otsu_cut import OtsuCut, empty_cut
from robustdml_ops.engine.triton.device import current
from robustdml_ops.engine.triton.kernels import launch

# Values that one program sorts without spilling registers; longer rows take PyTorch's sort.
LONGEST = 4096


def otsu_cut(values: Tensor, min_group: int) -> OtsuCut:
    """Best cut of every row of ``values`` (..., n ≥ 1), float64 or float32, into groups of ``min_group`` at least."""
    n = values.shape[-1]
    if n > LONGEST:
        return eager.otsu_cut(values, min_group)
    from robustdml_ops.engine.triton.kernels.otsu import otsu

    values, cut = values.contiguous(), empty_cut(values)
    outputs = (cut.threshold, cut.low_mean, cut.high_mean, cut.index, cut.excluded, cut.found)
    if values.numel():
        with current(values):
            otsu[(values.numel() // n,)](values, *outputs, n, min_group, **launch.otsu(n))
    return cut


def otsu_confidence(losses: Tensor, min_group: int, lam: float) -> None:
    """Cut, then confidence: there is no faster way here."""
