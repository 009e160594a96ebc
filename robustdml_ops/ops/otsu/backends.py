"""Otsu's cut in PyTorch, the native module and Triton, by sums of integers, as ``csrc/math/otsu.h`` explains."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.triton_device import current, launch

# Values that a block sorts in its shared memory, or a program without spilling registers; longer rows take PyTorch's.
NATIVE_LONGEST = {torch.float32: 8192, torch.float64: 4096}
TRITON_LONGEST = 4096


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
    types = (values.dtype, torch.int64, values.dtype, values.dtype, torch.bool, torch.int64)
    return OtsuCut(*(values.new_empty(values.shape[:-1], dtype=dtype) for dtype in types))


class EagerOtsu:
    """Sort, sums, the largest of all cuts: on every device, without a compiler."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        """Best cut of every row of ``values`` (..., n ≥ 1), float64 or float32; groups hold ``min_group`` at least."""
        length = values.shape[-1]
        finite = torch.isfinite(values)
        ordered = values.masked_fill(~finite, torch.inf).sort(dim=-1).values
        n = finite.sum(-1, keepdim=True)
        half_origin = ordered[..., :1].masked_fill(n == 0, 0).double() / 2
        half_range = ordered.gather(-1, (n - 1).clamp(min=0)).masked_fill(n == 0, 0).double() / 2 - half_origin
        bits = (62 - torch.frexp(n.double()).exponent.long()).clamp(max=51)
        shift = bits - torch.frexp(half_range).exponent
        # 2^shift as a product of two, made of their bits: it may exceed the largest number.
        first, second = (((k + 1023) << 52).view(torch.float64) for k in (shift >> 1, shift - (shift >> 1)))

        places = torch.arange(1, length + 1, device=values.device)
        y = torch.where(places <= n, (ordered.double() / 2 - half_origin) * first * second, 0)
        sums = y.round().long().cumsum(-1)
        total = sums[..., -1:]
        difference = n * sums.double() - places * total.double()
        between = difference.square() / (places * (n - places)).double()
        following = torch.cat([ordered[..., 1:], ordered[..., -1:]], -1)
        allowed = (ordered < following) & (places >= min_group) & (n - places >= min_group)
        best, at = torch.where(allowed, between, -1).max(-1, keepdim=True)
        found = best >= 0

        def mean(total: Tensor, count: Tensor) -> Tensor:
            return ((total.double() / count.clamp(min=1) / first / second + half_origin) * 2).to(values.dtype)

        i, low_sum, mean_all = at + 1, sums.gather(-1, at), mean(total, n)
        low, high = ordered.gather(-1, at), following.gather(-1, at)
        middle = low / 2 + high / 2
        middle = torch.where((middle >= low) & (middle < high), middle, low)
        cut = OtsuCut(
            threshold=torch.where(found, middle, torch.inf),
            index=torch.where(found, i, n),
            low_mean=torch.where(found, mean(low_sum, i), mean_all),
            high_mean=torch.where(found, mean(total - low_sum, n - i), mean_all),
            found=found,
            excluded=length - n,
        )
        return OtsuCut(*(column.squeeze(-1) for column in cut))

    def otsu_confidence(self, losses: Tensor, min_group: int, lam: float) -> tuple[Tensor, Tensor] | None:
        """Threshold () and ProcSim's confidences (n,) of ``losses`` (n,); None: not fused in this backend."""


class NativeOtsu(EagerOtsu):
    """A radix sort on the CPU, also with the confidences; one launch on CUDA devices."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        n = values.shape[-1]
        if module.on_gpu(values) and n > NATIVE_LONGEST[values.dtype]:
            return super().otsu_cut(values, min_group)
        values, cut = values.contiguous(), empty_cut(values)
        outputs = (cut.threshold, cut.low_mean, cut.high_mean, cut.index, cut.excluded, cut.found)
        module.call("otsu", values, values, values.numel() // n, n, min_group, *outputs)
        return cut

    def otsu_confidence(self, losses: Tensor, min_group: int, lam: float) -> tuple[Tensor, Tensor] | None:
        """Fused on the CPU alone."""
        if module.on_gpu(losses):
            return None
        losses = losses.contiguous()
        sigma, threshold = torch.empty_like(losses), losses.new_empty(())
        module.call("otsu_confidence", losses, losses, losses.numel(), min_group, lam, threshold, sigma)
        return threshold, sigma


class TritonOtsu(EagerOtsu):
    """A program a row, whose 64-bit sums fill the registers at 8 a thread; in Triton's interpreter also on the CPU."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        n = values.shape[-1]
        if n > TRITON_LONGEST:
            return super().otsu_cut(values, min_group)
        from robustdml_ops.ops.otsu.kernels import otsu

        values, cut = values.contiguous(), empty_cut(values)
        outputs = (cut.threshold, cut.low_mean, cut.high_mean, cut.index, cut.excluded, cut.found)
        if values.numel():
            BLOCK = 1 << max(4, (n - 1).bit_length())
            parameters = launch(BLOCK=BLOCK, num_warps=max(1, BLOCK // 256), num_stages=1)
            with current(values):
                otsu[(values.numel() // n,)](values, *outputs, n, min_group, **parameters)
        return cut


BACKENDS: dict[str, EagerOtsu] = {"native": NativeOtsu(), "triton": TritonOtsu(), "eager": EagerOtsu()}
