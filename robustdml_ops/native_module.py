"""The compiled module: where it can run, and how its functions are given tensors."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

try:
    library: Any = import_module("robustdml_ops._native")
except ImportError as error:  # the install found no compiler, or the module was built for another Python
    library = None
    _REASON = f"the native module is not installed ({error}); reinstall where a C++17 compiler is found"

# How the names of its functions end.
SUFFIX = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16"}
_COMPUTE = (torch.float32, torch.float64)


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this backend can't serve ``device`` in the compute type ``dtype``, or None."""
    if library is None:
        return _REASON
    if dtype not in _COMPUTE:
        return f"the native epilogues compute in float32 or float64, not {dtype}"
    if device.type == "cuda":
        return _cuda_unavailable(library.cuda_architectures, torch.cuda.get_device_capability(device))
    return None if device.type == "cpu" else f"the native epilogues know CPU and CUDA, and the tensors are on {device}"


def address(tensor: Tensor | None) -> int:
    """Where the elements of ``tensor`` are; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()


def addresses(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors as their addresses, None as 0, and numbers as they are."""
    return {
        name: value.data_ptr() if isinstance(value, Tensor) else 0 if value is None else value
        for name, value in arguments.items()
    }


def on_gpu(tensor: Tensor) -> bool:
    """Whether the CUDA part serves ``tensor``."""
    return tensor.is_cuda


@contextmanager
def current_stream(device: torch.device) -> Iterator[int]:
    """Address of the current stream of ``device``, with ``device`` current: kernels are launched on the current one."""
    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device).cuda_stream


def _cuda_unavailable(architectures: str | None, capability: tuple[int, int]) -> str | None:
    """Why kernels built for ``architectures`` (CMake's names) can't run on a device of ``capability``, or None."""
    if architectures is None:
        return "the native module was built without its CUDA part; reinstall with ROBUSTDML_CUDA=ON where nvcc is found"
    for major, minor, feature, kind in re.findall(r"(\d+)(\d)([af]?)-(real|virtual)", architectures):
        built = (int(major), int(minor))
        if built == capability:
            return None
        # A binary serves later minors of its major, PTX all later devices; an architecture's own features it alone.
        if not feature and built <= capability and (kind == "virtual" or built[0] == capability[0]):
            return None
    return (
        f"the native module was built for {architectures}, and the device has compute capability "
        f"{'.'.join(map(str, capability))}; reinstall with it in TORCH_CUDA_ARCH_LIST"
    )
