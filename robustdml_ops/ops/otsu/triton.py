"""Otsu's cut in Triton: a program a row, in one launch."""

from torch import Tensor

from robustdml_ops.backends.triton_device import Launch, current, launch
from robustdml_ops.ops.otsu.eager import EagerOtsu
from robustdml_ops.ops.otsu.problem import OtsuCut, empty_cut

# Values that one program sorts without spilling registers; longer rows take PyTorch's sort.
LONGEST = 4096


class TritonOtsu(EagerOtsu):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        """The best cut of every row."""
        n = values.shape[-1]
        if n > LONGEST:
            return super().otsu_cut(values, min_group)
        from robustdml_ops.ops.otsu.kernels import otsu

        values, cut = values.contiguous(), empty_cut(values)
        outputs = (cut.threshold, cut.low_mean, cut.high_mean, cut.index, cut.excluded, cut.found)
        if values.numel():
            with current(values):
                otsu[(values.numel() // n,)](values, *outputs, n, min_group, **otsu_launch(n))
        return cut


def otsu_launch(n: int) -> Launch:
    """A row a program, 8 values a thread: their 64-bit sums fill the registers."""
    BLOCK = 1 << max(4, (n - 1).bit_length())
    return launch(BLOCK=BLOCK, num_warps=max(1, BLOCK // 256), num_stages=1)
