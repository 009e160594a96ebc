"""The compiled module: where it can run, tensors as its arguments, and its sweeps by lanes.

On the CPU each thread (lane) takes chunks of rows on its own, see ``csrc/common/cpu/lanes.h``. The lanes call the BLAS
that PyTorch is linked with, found by its symbols. Where there is none :func:`lanes_serve` is false, and a sweep takes a
chunk at a time, with PyTorch's products.
"""

import ctypes
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
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

KB = 1 << 10
# Bytes of a chunk in the cache of one core: its similarities, rows and their gradient. Measured: 256 rows are best
# at B = 256 and at 1024, 96 to 128 at 4096 (docs/design.md).
_CHUNK, _LEAST, _MOST = 1280 * KB, 96, 256
# at::native::cpublas::brgemm of bfloat16 matrices, by pairs of rows or not, and brgemm_release.
_BRGEMM = "6brgemmEllllllbPKN3c108BFloat16ES5_Pfb", "14brgemm_releaseEb"
# Below that a second thread brings less than it costs to wait for: rows of 64 KB are multiplied in 20 µs.
_WORTH = 64 * KB


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


def lanes_serve(proxies: Tensor, X: torch.dtype, compute: torch.dtype) -> bool:
    """Whether lanes can multiply the proxies: on the CPU, in a layout that BLAS reads, with X of the compute type."""
    if proxies.device.type != "cpu" or compute != X or matrix_product(compute) == 0:
        return False
    if proxies.dtype != compute and (proxies.dtype, compute) != (torch.bfloat16, torch.float32):
        return False
    rows, D = proxies.shape
    row, column = proxies.stride()
    if row == 1 and column != 1:
        return column >= rows
    return column == 1 and row >= D


def product_fields(
    X: Tensor, P: Tensor, count: int, normalize: bool, per_row: int = 0, together: int = 1
) -> dict[str, Any]:
    """The fields of a ``Sweep`` without gradients: products of X (B, D) with ``count`` rows of P, or with unit rows."""
    (B, D), threads = X.shape, torch.get_num_threads()
    rows = lane_rows(count, (B + 2 * D + per_row) * X.itemsize, threads)
    return {
        "gemm": matrix_product(X.dtype),
        "set_threads": set_threads(),
        "X": X.data_ptr(),
        "B": B,
        "D": D,
        "P": P.data_ptr(),
        "bfloat16": P.dtype == torch.bfloat16,
        "P_row_stride": P.stride(0),
        "P_column_stride": P.stride(1),
        "rows": count,
        "normalize": normalize,
        "chunk_rows": min(count, max(1, rows // together) * together),
        "threads": threads,
    }


def lane_rows(rows: int, row_bytes: int, threads: int) -> int:
    """Rows of a chunk: as many as fit one core's cache, at least so many that products are fast, at most all."""
    fitting = min(_MOST, max(_LEAST, _CHUNK // row_bytes // 32 * 32))
    # As many chunks for each lane, as far as they are worth a thread.
    chunks = threads * max(1, -(-rows // (threads * fitting)))
    return min(fitting, max(_WORTH // row_bytes, -(-rows // chunks // 4) * 4))


@cache
def matrix_product(dtype: torch.dtype) -> int:
    """Address of BLAS's product of matrices in PyTorch's libraries; 0 where none is found that multiplies."""
    if library is None or dtype not in (torch.float32, torch.float64):
        return 0
    address = _symbol("sgemm_" if dtype == torch.float32 else "dgemm_")
    return address if address and _multiplies(address, dtype) else 0


@cache
def bfloat16_product() -> tuple[int, int]:
    """Addresses of oneDNN's product of bfloat16 matrices in PyTorch, and of its end; 0 where it or the CPU has none."""
    brgemm, release = (_symbol(f"_ZN2at6native7cpublas{name}") for name in _BRGEMM)
    if library is None or not brgemm or not release or not library.multiplies_bfloat16():
        return 0, 0
    V = np.arange(-33, 33, dtype=np.float32).reshape(33, 2)
    S, dX, dV = (np.empty((rows, 2), np.float32) for rows in (64, 2, 64))
    places = [M.ctypes.data for M in (V, V, V, S, dX, dV)]
    try:
        library.bfloat16_products(brgemm, release, *places[:3], 2, 2, 33, *places[3:])
    except RuntimeError:
        return 0, 0
    expected = V @ V[:2].T, V.T @ V, V @ V[:2]
    return (brgemm, release) if all(map(np.array_equal, (S[:33], dX, dV[:33]), expected)) else (0, 0)


@cache
def bfloat16_pays() -> bool:
    """Whether lanes multiply bfloat16: faster than float32, on AMD's processors and those with AMX."""
    return bfloat16_product() != (0, 0) and library.bfloat16_is_faster()


@cache
def set_threads() -> int:
    """Address of MKL's function for the threads of one thread's products; 0 where PyTorch multiplies with another."""
    return _symbol("MKL_Set_Num_Threads_Local")


def _symbol(name: str) -> int:
    """Address of a function in PyTorch's libraries, or 0."""
    try:
        # The name that Linux wheels have; a handle finds the symbols of what it was linked with, too.
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def _multiplies(address: int, dtype: torch.dtype) -> bool:
    """Whether the function at ``address`` multiplies two small matrices rightly, one by rows, one by columns."""
    # Arrays of NumPy: the first call may come under any mode of PyTorch, such as another default device.
    kind = np.float32 if dtype == torch.float32 else np.float64
    A, B = np.arange(6, dtype=kind).reshape(2, 3), np.arange(12, dtype=kind).reshape(4, 3).T
    C = np.full((2, 4), np.nan, kind)
    multiply = getattr(library, f"multiply_{SUFFIX[dtype]}")
    strides = ((M.ctypes.data, *(step // M.itemsize for step in M.strides)) for M in (A, B, C))
    multiply(address, *strides, 2, 4, 3, False)
    return np.array_equal(C, np.einsum("ik,kj->ij", A, B))
