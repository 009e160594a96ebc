"""Arguments of the native module's sweeps by lanes: on the CPU each thread takes chunks of rows on its own.

See ``csrc/common/cpu/lanes.h``. The lanes call the BLAS that PyTorch is linked with, found by its symbols. Where there
is none :func:`lanes_serve` is false, and the sweep takes a chunk at a time, with PyTorch's products.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.matrices import by_columns
from robustdml_ops.engine.similarity_chunks import Similarities

KB = 1 << 10
# What a chunk brings into the cache of one core: its similarities, rows and their gradient. Measured: 256 rows are best
# at B = 256 and at 1024, 96 to 128 at 4096 (docs/performance.md).
_CHUNK, _LEAST, _MOST = 1280 * KB, 96, 256
# at::native::cpublas::brgemm of bfloat16 matrices, by pairs of rows or not, and brgemm_release.
_BRGEMM = "6brgemmEllllllbPKN3c108BFloat16ES5_Pfb", "14brgemm_releaseEb"
# Below that a second thread brings less than it costs to wait for: rows of 64 KB are multiplied in 20 µs.
_WORTH = 64 * KB


def lanes_serve(proxies: Tensor, X: torch.dtype, compute: torch.dtype) -> bool:
    """Whether lanes multiply such proxies: on the CPU, in a layout that BLAS reads, beside X in the compute type."""
    if proxies.device.type != "cpu" or compute != X or matrix_product(compute) == 0:
        return False
    if proxies.dtype != compute and (proxies.dtype, compute) != (torch.bfloat16, torch.float32):
        return False
    rows, D = proxies.shape
    if by_columns(proxies):
        return proxies.stride(1) >= rows
    return proxies.stride(1) == 1 and proxies.stride(0) >= D


def sweep_fields(similarities: Similarities, per_row: int = 0) -> dict[str, Any]:
    """The fields of a ``Sweep`` of the native module; ``per_row``: more elements that a row brings into the cache."""
    dP, count, update = similarities.dP, similarities.count, similarities.update
    shared = product_fields(
        similarities.X, similarities.proxies, count, similarities.normalize, per_row, similarities.together
    )
    half = similarities.operand == torch.bfloat16 and not by_columns(similarities.proxies)
    brgemm, release = bfloat16_product() if half and torch.backends.mkldnn.enabled else (0, 0)
    return {
        **shared,
        "brgemm": brgemm,
        "brgemm_release": release,
        "met": module.address(similarities.selected),
        "dX": 0 if similarities.dX is None else similarities.dX.zero_().data_ptr(),
        "dP": module.address(dP),
        "dP_row_stride": 0 if dP is None else dP.stride(0),
        "dP_column_stride": 0 if dP is None else dP.stride(1),
        "update": None if update is None else update.native(-(-count // shared["chunk_rows"])),
    }


def product_fields(
    X: Tensor, P: Tensor, count: int, normalize: bool, per_row: int = 0, together: int = 1
) -> dict[str, Any]:
    """The fields of a ``Sweep`` without gradients: products of X (B, D) with ``count`` rows of P, or with unit rows."""
    (B, D), threads = X.shape, torch.get_num_threads()
    rows = chunk_rows(count, (B + 2 * D + per_row) * X.itemsize, threads)
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


def chunk_rows(rows: int, row_bytes: int, threads: int) -> int:
    """Rows a chunk: what fits the cache of one core, and so many that products are fast; fewer where all are few."""
    fitting = min(_MOST, max(_LEAST, _CHUNK // row_bytes // 32 * 32))
    # As many chunks for each lane, as far as they are worth a thread.
    chunks = threads * max(1, -(-rows // (threads * fitting)))
    return min(fitting, max(_WORTH // row_bytes, -(-rows // chunks // 16) * 16))


@cache
def matrix_product(dtype: torch.dtype) -> int:
    """Address of BLAS's product of matrices in PyTorch's libraries; 0 where none is found that multiplies."""
    if module.library is None or dtype not in (torch.float32, torch.float64):
        return 0
    address = _symbol("sgemm_" if dtype == torch.float32 else "dgemm_")
    return address if address and _multiplies(address, dtype) else 0


@cache
def bfloat16_product() -> tuple[int, int]:
    """Addresses of oneDNN's product of bfloat16 matrices in PyTorch, and of its end; 0 where it or the CPU has none."""
    brgemm, release = (_symbol(f"_ZN2at6native7cpublas{name}") for name in _BRGEMM)
    if module.library is None or not brgemm or not release or not module.library.multiplies_bfloat16():
        return 0, 0
    V = torch.arange(-33.0, 33.0).view(33, 2)
    S, dX, dV = torch.empty(64, 2), torch.empty(2, 2), torch.empty(64, 2)
    places = [M.data_ptr() for M in (V, V, V, S, dX, dV)]
    try:
        module.library.bfloat16_products(brgemm, release, *places[:3], 2, 2, 33, *places[3:])
    except RuntimeError:
        return 0, 0
    expected = V @ V[:2].t(), V.t() @ V, V @ V[:2]
    return (brgemm, release) if all(map(torch.equal, (S[:33], dX, dV[:33]), expected)) else (0, 0)


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
    """Whether the function at ``address`` gives the product of two small matrices, by rows and by columns."""
    A, B = torch.arange(6, dtype=dtype).view(2, 3), torch.arange(12, dtype=dtype).view(4, 3).t()
    C = torch.full((2, 4), torch.nan, dtype=dtype)
    multiply = getattr(module.library, f"multiply_{module.SUFFIX[dtype]}")
    multiply(address, *((M.data_ptr(), *M.stride()) for M in (A, B, C)), 2, 4, 3, False)
    return torch.equal(C, torch.einsum("ik,kj->ij", A, B))
