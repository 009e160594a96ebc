"""Otsu's cut, of the backends that launch kernels, against the eager one."""

import torch

from robustdml_ops.ops import otsu_confidence
from robustdml_ops.ops.lambert_w.backends import BACKENDS as LAMBERT_W
from robustdml_ops.ops.otsu import BACKENDS

DTYPES = (torch.float32, torch.float64)


def compare(backend, dtype, device, lengths):
    """Against eager in every bit: ties, offsets, and what is not finite; with confidences the same as without."""
    for n in lengths:
        values = torch.randn(5, n, generator=torch.Generator().manual_seed(n), dtype=dtype)
        values[1] = values[1].round() + 1e6
        values[2] = values[2] * 1e-30
        values[3, ::3], values[4, ::5] = torch.nan, -torch.inf
        least = 1 + n % 3
        ours, theirs = (BACKENDS[name].otsu_cut(values.to(device), least) for name in (backend, "eager"))
        for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
            assert torch.equal(mine, other), (n, name, mine, other)
        threshold, sigma = otsu_confidence(values[0].to(device), 0.1, least, backend=backend)
        assert torch.equal(threshold, ours.threshold[0])
        assert torch.equal(sigma, LAMBERT_W[backend].confidence(values[0].to(device), threshold, 0.1))
