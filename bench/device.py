"""The device of the benchmarks: the GPU where there is one."""

import torch

from robustdml_ops.backends.dispatch import UNAVAILABLE, preference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def backends() -> list[str]:
    """The backends that serve the device."""
    names = preference(torch.device(DEVICE))
    return [name for name in names if UNAVAILABLE[name](torch.device(DEVICE), torch.float32) is None]
