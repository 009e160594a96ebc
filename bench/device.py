"""Where what is timed lies: on the GPU where there is one."""

import torch

from robustdml_ops.backends.choice import UNAVAILABLE, preference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def backends() -> list[str]:
    """Those that serve the device, so that each is timed."""
    names = preference(torch.device(DEVICE))
    return [name for name in names if UNAVAILABLE[name](torch.device(DEVICE), torch.float32) is None]
