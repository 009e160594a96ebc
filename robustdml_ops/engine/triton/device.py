"""Where the Triton kernels can run, and how they are launched."""

import importlib.util
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this backend can't serve ``device`` in the compute type ``dtype``, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if dtype not in (torch.float32, torch.float64):
        return f"the Triton epilogues compute in float32 or float64, not {dtype}"
    if device.type == "cpu":
        return None if interpreted() else "the tensors are on the CPU, where Triton runs under TRITON_INTERPRET=1 alone"
    if device.type != "cuda":
        return f"the Triton epilogues run on CUDA devices, and the tensors are on {device}"
    if torch.version.cuda is not None and torch.cuda.get_device_capability(device) < (8, 0):
        return f"the Triton epilogues need compute capability 8.0, and {device} has less"
    return None


def grid_of(rows: int, block: int | bool | str) -> tuple[int]:
    """Programs that take ``block`` of ``rows`` each."""
    return (-(-rows // int(block)),)


def row_stride(upstream: Tensor | None) -> int:
    """Elements between the values of ``upstream``; 0 where one serves all rows, or there is none."""
    return 0 if upstream is None or upstream.dim() == 0 else upstream.stride(0)


def current(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's device the current one: Triton launches there and nowhere else."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def is_hopper(tensor: Tensor) -> bool:
    """Whether ``tensor`` is on a device with wgmma."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device)[0] == 9


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    import triton

    return bool(triton.knobs.runtime.interpret)
