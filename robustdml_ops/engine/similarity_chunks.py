"""Similarities of a batch by chunks of proxies, and the gradients of each chunk: the loop of every sweep."""

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.cards import card
from robustdml_ops.backends.dispatch import product_dtype
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.engine.rows.backends import (
    RowsBackend,
    by_columns,
    forget_matrices,
    gradient_buffer,
    new_rows,
    rows_at,
)
from robustdml_ops.engine.rows.lengths import inverse_lengths
from robustdml_ops.engine.validation import check_gradient_fits, check_range

MB = 1 << 20
# Rows that any chunk may have: numbers of programs, of partial sums and of elements stay small.
LONGEST = 1 << 20


def chunk_rows(classes: int, per_class: int, device: torch.device, on_the_way: int = 0) -> int:
    """Classes per chunk, by shapes and the device alone, never by free memory: it fixes the order and bits of sums."""
    # On a GPU the host's six launches a chunk, up to 0.1 ms, must take less time than the chunk's S in memory.
    if device.type != "cuda":
        return cache_rows(per_class, device)
    size = 4 * max(1, per_class + on_the_way)
    row = card(device)
    budget = min(row.chunk_most_mb * MB, max(row.chunk_least_mb * MB, memory(device) // row.chunk_share))
    largest = min(LONGEST, max(64, budget // size // 64 * 64))
    chunks = -(-classes // largest)
    return min(largest, -(-classes // max(1, chunks) // 64) * 64) if classes else largest


def bytes_to_save(device: torch.device) -> int:
    """Bytes that forward may save for backward: a share of the memory of the GPU or machine, or the user's limit."""
    share = memory(device) // card(device).saved_share if device.type in ("cpu", "cuda") else 0
    return share if saved_limit is None else min(share, saved_limit)


def limit_saved_bytes(most: int | None) -> None:
    """Limit what forward saves for backward, in bytes.

    Softmax losses over classes save their terms, batch × classes, as far as they fit into 1/32 of the memory of the
    GPU or of the machine. The others are computed again in backward. On a CPU the results have the same bits.

    Parameters
    ----------
    most : int, optional
        At most so many bytes of a step; 0: the least memory, a step takes a third longer. None: 1/32 of all.

    Raises
    ------
    ValueError
        For anything but None and an integer of 0 or more.

    Examples
    --------
    >>> from robustdml_ops.ops import limit_saved_bytes
    >>> limit_saved_bytes(100 * 2**20)
    >>> limit_saved_bytes(None)
    """
    global saved_limit
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise ValueError(f"most must be a number of bytes, 0 or more, or None, got {most!r}")
    saved_limit = most
    forget_matrices("terms")


# The user's limit, which is part of the signature of a planned step.
saved_limit: int | None = None


def cache_rows(per_class: int, device: torch.device) -> int:
    """Classes per chunk, so that their data stays in the last-level cache; ``per_class`` as above."""
    budget = (32 if device.type == "cuda" else 12) * MB
    size = 4 * max(1, per_class)
    # Where few rows fill the cache, S is in memory anyway, and a product of few rows is slow: 64 rows with 10⁵ columns
    # take 1.45 times as long as 256. So many, while S stays below 64 MB.
    least = max(64, min(256, 64 * MB // size // 64 * 64))
    return max(least, min(65536 if device.type == "cuda" else 8192, budget // size // 64 * 64))


def memory(device: torch.device) -> int:
    """Bytes of the machine, or of a GPU or the part of it that is lent; PyTorch keeps the number, so nothing waits."""
    if device.type == "cpu":
        return machine_memory()
    return int(torch.cuda.get_device_properties(device).total_memory)


@cache
def machine_memory() -> int:
    """Bytes of the machine, or of the container's part of it; 4 GB where the system does not tell."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 32
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


def product(A: Tensor, B: Tensor, out: Tensor) -> Tensor:
    """Out ← A @ B, where ``out`` has the accumulation type."""
    if A.dtype == out.dtype:
        return torch.mm(A, B, out=out)
    return torch.mm(A, B, out_dtype=out.dtype, out=out)


def accumulate(total: Tensor, A: Tensor, B: Tensor) -> None:
    """Total ← total + A @ B, where ``total`` has the accumulation type."""
    if A.dtype == total.dtype:
        total.addmm_(A, B)
    else:
        torch.addmm(total, A, B, out_dtype=total.dtype, out=total)


def slices_of(upstream: tuple[Tensor, Tensor], first: int, last: int) -> tuple[Tensor, Tensor]:
    """Upstream gradients of the rows ``first:last``; a scalar is shared by all rows."""
    positive, negative = (factor if factor.dim() == 0 else factor[first:last] for factor in upstream)
    return positive, negative


def upstream_arguments(upstream: tuple[Tensor, Tensor] | None) -> dict[str, Any]:
    """Upstream gradients of positive and negative sums as arguments of all backends' kernels; a scalar has stride 0."""
    positive, negative = upstream or (None, None)
    return {
        "upstream_positive": positive,
        "upstream_negative": negative,
        "upstream_positive_stride": 0 if positive is None or positive.dim() == 0 else positive.stride(0),
        "upstream_negative_stride": 0 if negative is None or negative.dim() == 0 else negative.stride(0),
    }


def count_selected(proxies: Tensor, rows: Tensor | None) -> int:
    """Number of proxies in a sweep: all, or ``len(rows)``."""
    return len(proxies) if rows is None else len(rows)


def checked_count(proxies: Tensor, update: ProxyUpdate | None) -> int:
    """Number of proxies in the sweep of an update, whose rows are checked."""
    rows = None if update is None else update.rows
    if rows is not None:
        check_range(rows, len(proxies), "row", "rows", "the number of rows")
    return count_selected(proxies, rows)


def gradients_without_samples(
    embeddings: Tensor, proxies: Tensor, compute: torch.dtype, want: tuple[bool, bool], update: ProxyUpdate | None
) -> tuple[Tensor | None, Tensor | None]:
    """Zero gradients of both matrices. An update still takes its step: momentum and weight decay go on."""
    dP = None
    if want[1] and update is None:
        dP = gradient_buffer(proxies).zero_()
    elif want[1] and update is not None:
        count, D = count_selected(proxies, update.rows), proxies.shape[1]
        rows = chunk_rows(count, 2 * D, proxies.device)
        for first in range(0, count, rows):
            update.take(first, proxies.new_zeros((min(rows, count - first), D)))
    return torch.zeros_like(embeddings, dtype=compute) if want[0] else None, dP


class Chunk(NamedTuple):
    """Similarities of the classes ``first:last``."""

    first: int
    last: int
    S: Tensor  # (c, B) compute type: V·x; an epilogue turns it into dL/dS where there is no dS
    V: Tensor  # (c, D) operand type: unit proxies, or the proxies, as multiplied
    inverse_norm: Tensor  # (c,) compute type: 1 / |proxy|
    short: bool  # whether a gradient may be beyond the type, see the backend's normalize_rows()
    scale: Tensor | None  # inverse_norm where V is not normalised: cosines = S · scale; None: S holds cosines
    dS: Tensor | None = None  # (c, B) operand type: dL/dS · scale, written by an epilogue; None: it is written to S
    X_scale: Tensor | None = None  # (B,) as ``scale``, where the embeddings are not normalised


class Swept(NamedTuple):
    """The rows that a sweep takes in chunks: proxies, or one side of pairs."""

    proxies: Tensor  # (C, D) or more rows
    name: str = "proxies"  # for messages
    selected: Tensor | None = None  # (C,) int64, distinct: which rows of ``proxies``; None: all
    normalize: bool = True  # whether they are scaled to length 1
    together: int = 1  # rows of a class, which no chunk cuts apart
    per_row: int = 0  # elements that a row brings into a chunk beside itself, its similarities and its gradient


class Similarities:
    """All similarities of a batch with C proxies, a chunk at a time; :meth:`backward` takes its dL/dS."""

    def __init__(
        self,
        embeddings: Tensor,
        swept: Swept,
        compute: torch.dtype,
        operand: torch.dtype,
        backend: RowsBackend,
        E: Tensor | None = None,
        name: str = "embeddings",
        as_they_are: bool = False,
    ) -> None:
        (B, D), new = embeddings.shape, embeddings.new_empty
        self.operand, operand = operand, product_dtype(operand, compute, embeddings.device)
        self.backend, self.embeddings, self.name, self.compute = backend, embeddings, name, compute
        self.swept, self.proxies, self.selected = swept, swept.proxies, swept.selected
        self.columns, self.count = backend.reads_columns(swept.proxies), count_selected(swept.proxies, swept.selected)
        # dL/dS of all classes but for a factor of each sample, (C, B) operand type: backward needs no S.
        self.E = E
        self.X_inverse_norm = new(B, dtype=compute)
        # Many embeddings need no copy where the epilogue of the caller knows ``X_scale`` of a chunk.
        X = backend.as_they_are(embeddings, operand) if as_they_are else None
        self.X_scale = self.X_inverse_norm if X is not None and backend.inverse_norms(X, self.X_inverse_norm) else None
        self.short = False
        if X is None or self.X_scale is None:
            X = new((B, D), dtype=operand)
            self.short = backend.normalize_rows(embeddings, X, self.X_inverse_norm)
        self.X = X
        # The embeddings as dP multiplies them: with ``E`` times its factors, which X_inverse_norm brings into dX.
        self.weighted = self.X
        # With ``E`` of few digits: makes the part of the labels in dL/dV of a chunk exact, in place.
        self.exact_labels: Callable[[Tensor, Tensor, int], None] | None = None
        self.dX: Tensor | None = None
        self.dP: Tensor | None = None
        self.update: ProxyUpdate | None = None

    @cached_property
    def rows(self) -> int:
        """Rows a chunk, a multiple of ``together``."""
        (B, D), together = self.embeddings.shape, self.swept.together
        most = chunk_rows(self.count, B + 2 * D + self.swept.per_row, self.X.device, B * self.backend.temporaries)
        return min(self.count, max(1, most // together) * together)

    def want_gradients(self, embeddings: bool, proxies: bool, update: ProxyUpdate | None = None) -> None:
        """Allocate the gradients that :meth:`backward` adds to; an ``update`` takes that of the proxies by chunks."""
        if embeddings:
            self.dX = torch.empty_like(self.X, dtype=self.compute)  # in its layout, as finish() reads both
        if proxies and update is not None:
            self.update = update
        elif proxies:
            self.dP = gradient_buffer(self.proxies)

    def __iter__(self) -> Iterator[Chunk]:
        new, B = self.embeddings.new_empty, len(self.X)
        multiplies = self.E is None or not self.differentiates
        S = new((self.rows if multiplies else 0, B), dtype=self.compute)
        inverse_norm = new(self.rows, dtype=self.compute)
        rounds = self.E is None and self.backend.rounds and self.X.dtype != self.compute and self.differentiates
        dS = new((self.rows, B), dtype=self.X.dtype) if rounds else None
        U: Tensor | None = None
        for first in range(0, self.count, self.rows):
            last = min(self.count, first + self.rows)
            count = last - first
            P = self.proxies[first:last] if self.selected is None else rows_at(self.proxies, self.selected[first:last])
            norm, scale, short = inverse_norm[:count], None, False
            V = self.backend.as_they_are(P, self.X.dtype) if self.swept.normalize else P.to(self.X.dtype)
            if V is not None:
                if multiplies:
                    product(V, self.X.t(), S[:count])
                if self.swept.normalize:
                    # Without S only finish() needs lengths.
                    known = not multiplies or self.backend.inverse_norms(V, norm)
                    V, scale = (V, norm) if known else (None, None)
            if V is None:
                U = new_rows(self.proxies, self.rows, self.columns, self.X.dtype) if U is None else U
                V = U[:count]
                short = self.backend.normalize_rows(P, V, norm)
                if multiplies:
                    product(V, self.X.t(), S[:count])
            part = dS[:count] if dS is not None else None if self.E is None else self.E[first:last]
            yield Chunk(first, last, S[:count], V, norm, short, scale, part, self.X_scale)

    @property
    def differentiates(self) -> bool:
        """Whether any gradient is wanted."""
        return self.dX is not None or self.dP is not None or self.update is not None

    @property
    def as_they_are(self) -> bool:
        """Whether a chunk multiplies the proxies without a normalised copy; its rows' layout decides."""
        rows = self.proxies if self.selected is None else rows_at(self.proxies, self.selected[:0])
        return self.backend.as_they_are(rows, self.X.dtype) is not None

    def backward(self, chunk: Chunk) -> None:
        """Add a chunk, whose dL/dS has been computed, to the wanted gradients; the update is last."""
        if not self.differentiates:
            return
        dS = chunk.S.to(self.X.dtype) if chunk.dS is None else chunk.dS
        if self.dX is not None:
            if chunk.first == 0:
                product(dS.t(), chunk.V, self.dX)
            else:
                accumulate(self.dX, dS.t(), chunk.V)
        if self.dP is None and self.update is None:
            return
        # Rows that are not normalised need no more than the product, in the proxies' type and layout.
        same = self.proxies.dtype == dS.dtype and not self.swept.normalize
        dtype, columns = (dS.dtype, by_columns(chunk.V)) if same else (self.compute, self.columns)
        dV = product(dS, self.weighted, self._gradient_rows(chunk.first, chunk.last, dtype, columns))
        if self.exact_labels is not None:
            self.exact_labels(dV, dS, chunk.first)
        if self.swept.normalize:
            rounds = self.dP is not None and self.dP.dtype != self.compute
            out = self.dP[chunk.first : chunk.last] if rounds and self.dP is not None else None
            dV = self.backend.finish(dV, chunk.V, chunk.inverse_norm, chunk.scale is None, out)
        if self.update is not None:
            self.update.take(chunk.first, dV)
        elif self.dP is not None:
            if chunk.short:
                check_gradient_fits(dV, chunk.inverse_norm, self.swept.name, chunk.first)
            if dV.untyped_storage()._cdata != self.dP.untyped_storage()._cdata:  # made elsewhere
                self.dP[chunk.first : chunk.last] = dV

    def _gradient_rows(self, first: int, last: int, dtype: torch.dtype, columns: bool) -> Tensor:
        """Room for dL/dP of the rows ``first:last``: its place, or rows that are copied there, rounded once."""
        if self.dP is not None and self.dP.dtype == dtype and by_columns(self.dP) == columns:
            return self.dP[first:last]
        return new_rows(self.proxies, last - first, columns, dtype)

    def check_proxy_gradients(self) -> None:
        """No gradient of a short proxy is beyond its type, of all proxies at once."""
        if self.dP is not None and self.swept.normalize:
            check_gradient_fits(self.dP, inverse_lengths(self.proxies.to(self.compute)), self.swept.name)

    def native_fields(self) -> dict[str, Any]:
        """The fields of a ``Sweep`` by lanes."""
        dP, update = self.dP, self.update
        normalize, together, per_row = self.swept[3:]
        fields = module.product_fields(self.X, self.proxies, self.count, normalize, per_row, together)
        half = self.operand == torch.bfloat16 and not by_columns(self.proxies) and module.bfloat16_pays()
        brgemm, release = module.bfloat16_product() if half and torch.backends.mkldnn.enabled else (0, 0)
        return {
            **fields,
            "brgemm": brgemm,
            "brgemm_release": release,
            "selected": module.address(self.selected),
            "dX": 0 if self.dX is None else self.dX.zero_().data_ptr(),
            "dP": module.address(dP),
            "dP_row_stride": 0 if dP is None else dP.stride(0),
            "dP_column_stride": 0 if dP is None else dP.stride(1),
            "update": None if update is None else update.native(-(-self.count // fields["chunk_rows"])),
        }

    def gradients(self) -> tuple[Tensor | None, Tensor | None]:
        """dL/dembeddings (B, D), compute type, and dL/dproxies (C, D), type of the proxies, once all chunks are in."""
        if self.dX is not None:
            self.backend.finish(self.dX, self.X, self.X_inverse_norm, unit=self.X_scale is None)
            if self.short:
                check_gradient_fits(self.dX, self.X_inverse_norm, self.name)
        return self.dX, self.dP
