"""The two layouts of matrices, by rows and by columns, and the memory of a large gradient, reused in the next step.

A fresh matrix is mapped page by page while it is first written: 9 of 120 ms of a step with 10⁵ classes of 128
dimensions. ``zero_grad()`` lets go of the last gradient before the next is made.
"""

import sys
import threading
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from robustdml_ops.backends.tracing import has_no_values

# Smaller ones an allocator keeps by itself.
_LEAST = 1 << 20

# By the parameter: memory of its last gradient.
_kept: MutableMapping[Tensor, torch.UntypedStorage] = WeakIdKeyDictionary()
_lock = threading.Lock()


def by_columns(P: Tensor) -> bool:
    """Whether the elements of a column, and not those of a row, lie side by side: a parameter (D, n) transposed."""
    return P.stride(0) == 1 and P.stride(1) != 1


def new_rows(like: Tensor, rows: int, columns: bool, dtype: torch.dtype) -> Tensor:
    """Room for (rows, D), without values: by columns, or by rows."""
    if columns:
        return like.new_empty((like.shape[1], rows), dtype=dtype).t()
    return like.new_empty((rows, like.shape[1]), dtype=dtype)


def rows_at(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows ``rows`` (n,) int64 of ``matrix`` (C, D), in its layout."""
    # By columns each is read from one end to the other.
    return matrix.t().index_select(1, rows).t() if by_columns(matrix) else matrix.index_select(0, rows)


def gradient_buffer(proxies: Tensor) -> Tensor:
    """Memory for dL/dproxies in the layout of the proxies, so that it becomes ``.grad`` without a copy."""
    (rows, D), columns = proxies.shape, by_columns(proxies)
    bytes_ = proxies.numel() * proxies.itemsize
    if bytes_ < _LEAST or proxies.device.type != "cpu" or has_no_values(proxies):
        return new_rows(proxies, rows, columns, proxies.dtype)
    # A view of a parameter comes and goes with each call.
    parameter = proxies if proxies._base is None else proxies._base
    storage = _take(parameter, bytes_)
    if storage is None:
        buffer = new_rows(proxies, rows, columns, proxies.dtype)
    else:
        buffer = torch.empty(0, dtype=proxies.dtype).set_(storage, 0, (rows, D), (1, rows) if columns else (D, 1))
    with _lock:
        _kept[parameter] = buffer.untyped_storage()
    return buffer


def _take(parameter: Tensor, bytes_: int) -> torch.UntypedStorage | None:
    """The memory kept of ``parameter``, if it has this size and no other reference."""
    with _lock:
        kept = [_kept.pop(parameter, None)]
    if kept[0] is None or kept[0].nbytes() != bytes_:
        return None
    # Held by no tensor, nor by what shares memory with one; nor, as an object of Python, by anything but the list.
    free = torch._C._storage_Use_Count(kept[0]._cdata) == 1 and _references(kept) == _ALONE
    return kept[0] if free else None


def _references(kept: list[Any]) -> int:
    """Count the references to what a list holds, as Python counts them, to be compared with `_ALONE`."""
    return sys.getrefcount(kept[0])


# Of what a list alone holds: how many Python itself has of it meanwhile differs, 3.14 counts fewer than 3.13.
_ALONE = _references([object()])
