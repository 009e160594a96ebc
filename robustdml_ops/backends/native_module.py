"""The compiled module: where it can run, and tensors as its arguments."""

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
        if library.cuda_architectures is None:
            return (
                f"the native module was built without CUDA ({library.cuda_left_out}); reinstall with ROBUSTDML_CUDA=ON "
                "where nvcc is found"
            )
        capability = torch.cuda.get_device_capability(device)
        versions = (library.cuda_runtime_version, library.cuda_driver_version())
        return _cuda_unavailable(library.cuda_architectures, capability, *versions)
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


def call(name: str, like: Tensor, *arguments: Any) -> None:
    """Call a function for the type of ``like``, tensors by address, on its GPU's stream or PyTorch's threads."""
    given = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
    suffix = SUFFIX[like.dtype]
    if on_gpu(like):
        with current_stream(like.device) as stream:
            getattr(library, f"{name}_cuda_{suffix}")(*given, stream)
    else:
        getattr(library, f"{name}_{suffix}")(*given, torch.get_num_threads())


@contextmanager
def current_stream(device: torch.device) -> Iterator[int]:
    """Address of the current stream of ``device``, with ``device`` current: kernels are launched on the current one."""
    # The module's own CUDA runtime has a current device of its own; the next launch sets it again.
    with torch.cuda.device(device):
        library.set_cuda_device(torch.cuda.current_device())
        yield torch.cuda.current_stream(device).cuda_stream


def _cuda_unavailable(architectures: str, capability: tuple[int, int], built_by: int, driver: int) -> str | None:
    """Why kernels built for ``architectures`` (CMake's names) can't run on a device of ``capability``, or None."""
    # Binaries run with drivers of the toolkit's major version or later, PTX with drivers as new as the toolkit.
    versions = f"was built by CUDA {dotted(built_by)}, and the driver supports CUDA {dotted(driver)} at most"
    if driver // 1000 < built_by // 1000:
        return f"the native module {versions}: update the driver, or reinstall with an older toolkit"
    from_ptx = False
    for major, minor, feature, kind in re.findall(r"(\d+)(\d)([af]?)-(real|virtual)", architectures):
        built = (int(major), int(minor))
        # A binary serves later minors of its major, PTX all later devices; an architecture's own features it alone.
        if built != capability and (feature or built > capability):
            continue
        if kind == "virtual":
            from_ptx = True
        elif built[0] == capability[0]:
            return None
    name = ".".join(map(str, capability))
    if from_ptx and driver >= built_by:
        return None
    if from_ptx:
        return (
            f"the native module {versions}, which can't compile its PTX for a device of compute capability {name}: "
            f"update the driver, or reinstall with {name} in TORCH_CUDA_ARCH_LIST"
        )
    return (
        f"the native module was built for {architectures}, and the device has compute capability {name}; reinstall "
        "with it in TORCH_CUDA_ARCH_LIST"
    )


def dotted(number: int) -> str:
    """``13.1`` of 13010."""
    return f"{number // 1000}.{number % 1000 // 10}"
