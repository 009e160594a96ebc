"""Otsu's cut in plain PyTorch: sort, cumulative sums of integers (``csrc/math/otsu.h``), the largest of all cuts.

Cumulative sums of floating-point numbers would not be the same twice on a GPU.
"""

import torch
from torch import Tensor

from robustdml_ops.ops.otsu.problem import OtsuBackend, OtsuCut


class EagerOtsu(OtsuBackend):
    """On every device, without a compiler."""

    def otsu_cut(self, values: Tensor, min_group: int) -> OtsuCut:
        """The best cut of every row."""
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
