"""Otsu's cut in the native module: a radix sort on the CPU, one launch on a GPU; on the CPU with the confidences."""

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.ops.otsu.eager import EagerOtsu
from robustdml_ops.ops.otsu.problem import OtsuCut, empty_cut

# Values a block sorts in its shared memory; longer rows take PyTorch's sort.
LONGEST = {torch.float32: 8192, torch.float64: 4096}


class NativeOtsu(EagerOtsu):
    """On the CPU and on CUDA devices."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        """The best cut of every row."""
        n = values.shape[-1]
        on_gpu = module.on_gpu(values)
        if on_gpu and n > LONGEST[values.dtype]:
            return super().otsu_cut(values, min_group)
        values, cut, suffix = values.contiguous(), empty_cut(values), module.SUFFIX[values.dtype]
        outputs = (cut.threshold, cut.low_mean, cut.high_mean, cut.index, cut.excluded, cut.found)
        arguments = (values.data_ptr(), values.numel() // n, n, min_group, *(output.data_ptr() for output in outputs))
        if on_gpu:
            with module.current_stream(values.device) as stream:
                getattr(module.library, f"otsu_cuda_{suffix}")(*arguments, stream)
        else:
            getattr(module.library, f"otsu_{suffix}")(*arguments, torch.get_num_threads())
        return cut

    def otsu_confidence(self, losses: Tensor, min_group: int, lam: float) -> tuple[Tensor, Tensor] | None:
        """Fused on the CPU alone."""
        if module.on_gpu(losses):
            return None
        losses = losses.contiguous()
        sigma, threshold = torch.empty_like(losses), losses.new_empty(())
        getattr(module.library, f"otsu_confidence_{module.SUFFIX[losses.dtype]}")(
            losses.data_ptr(),
            losses.numel(),
            min_group,
            lam,
            threshold.data_ptr(),
            sigma.data_ptr(),
            torch.get_num_threads(),
        )
        return threshold, sigma
