"""What planned steps on a GPU share: chunks of classes, and the launches before and after their epilogues."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import triton_device as device
from robustdml_ops.backends.dispatch import compute_dtype, operand_dtype, product_dtype
from robustdml_ops.backends.triton_launch import Launch
from robustdml_ops.engine.labels import check_label_range
from robustdml_ops.engine.plan import Plan, Results
from robustdml_ops.engine.rows.backends import TritonRows, by_columns, new_rows, rows_launch
from robustdml_ops.engine.similarity_chunks import accumulate, chunk_rows, product
from robustdml_ops.engine.validation import check_sample_weights, largest_weight

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Unscaled(NamedTuple):
    """dL/dU of rows: backward takes it through the Jacobian of the normalisation, times the upstream gradient."""

    G: Tensor  # (n, D) compute dtype
    V: Tensor  # (n, D): unit rows, or rows as they were multiplied
    factor: Tensor | None  # (n,) compute dtype, of the rows of G: 1 / |p| of unit rows; None: 1


class Finish(NamedTuple):
    """The launch of ``subtract_radial`` that gives a gradient, and its layout."""

    launch: Launch
    dtype: torch.dtype
    columns: bool

    def __call__(self, unscaled: Unscaled, factor: Tensor | None, out: Tensor | None = None) -> Tensor:
        """The gradient times ``factor`` (), in ``out``, or in place where its type and layout allow it."""
        G = unscaled.G
        if out is None:
            kept = G.dtype == self.dtype and not self.columns
            out = G if kept else new_rows(G, len(G), self.columns, self.dtype)
        self.launch(*unscaled, factor, out)
        return out


class Place(NamedTuple):
    """A chunk of classes, and how many programs, or parts of sums, stand before its own."""

    first: int
    classes: int
    first_place: int


class Piece(NamedTuple):
    """A chunk of classes."""

    first: int
    last: int
    normalize: Launch | None  # unit rows and their 1 / |p|, or those alone; None: the epilogue needs neither
    epilogue: Launch  # of the product of the chunk, or product and epilogue in one
    finish: Finish


@dataclass(frozen=True)
class Common:
    """Properties that the tensors of a step determine."""

    device: torch.device
    shape: tuple[int, int, int]  # B, C, D
    compute: torch.dtype
    operand: torch.dtype  # of what the products multiply
    autocast: bool
    rows: int  # classes a chunk
    as_they_are: bool  # whether the proxies are multiplied as they are, and not unit rows


@dataclass(frozen=True)
class GpuPlan(Plan):
    """A step over all classes. Tensors: embeddings, proxies, labels, and at place 5 weights or None."""

    common: Common
    settings: tuple[Any, ...]  # of the loss, for the general way
    prepare: Launch
    pieces: tuple[Piece, ...]
    finish: tuple[Finish, Finish]  # of the embeddings and of all proxies
    add: Launch  # the parts of the loss

    def prepared(
        self, X: Tensor, labels: Tensor, weights: Tensor | None, biased: bool, P: Tensor | None = None
    ) -> tuple[Any, ...]:
        """Unit embeddings (B, D), 1 / |x| (B,), biases (B,) or None, parts of a number of samples or classes.

        The last is the labels' scale · cosine (B,), or None without ``P``.
        """
        of, new = self.common, X.new_empty
        if X.is_cpu:  # Triton's interpreter leaves out the kernel's assertions
            check_label_range(labels, of.shape[1])
            weights = None if weights is None else check_sample_weights(weights, X)
        U, inverse_norm = new((of.shape[0], of.shape[2]), dtype=of.operand), new(of.shape[0], dtype=of.compute)
        bias = torch.empty_like(inverse_norm) if biased else None
        counts = new(self.prepare.grid[0], dtype=torch.int32)
        target = None if P is None else torch.empty_like(inverse_norm)
        self.prepare(X, U, inverse_norm, labels, weights, bias, counts, P, target)
        return U, inverse_norm, bias, counts, target

    def chunk_of(self, piece: Piece, P: Tensor, U: Tensor | None, norm: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The rows of a chunk as they are multiplied, in ``U`` or in P, and 1 / |p| in ``norm``."""
        count = piece.last - piece.first
        rows = P if count == len(P) else P[piece.first : piece.last]
        V = rows if U is None else U[:count]
        if piece.normalize is not None:
            piece.normalize(rows, None if U is None else V, norm)
        return V, norm

    def gradients_of(
        self,
        piece: Piece,
        operands: tuple[Tensor, Tensor, Tensor | None],
        V: Tensor,
        factor: Tensor | None,
        into: tuple[Tensor | None, Tensor | None, Tensor | None],
        complete: Callable[[Tensor, Tensor, int], None] | None = None,
    ) -> Unscaled | None:
        """Add a chunk to dX, and give dL/dP to dP.

        ``operands``: dS (c, B), X (B, D) for dV = dS·X, and W (c, D) for dX = dSᵀ·W; ``factor``: of the rows of dV, as
        Unscaled has it; ``into``: dX, room for dV, dP. ``complete`` takes dV, dS and the first class, and writes to dV
        what the product lacks.
        """
        (dS, X, W), (dX, room, dP) = operands, into
        if dX is not None and W is not None:
            if piece.first == 0:
                product(dS.t(), W, dX)
            else:
                accumulate(dX, dS.t(), W)
        if room is None:
            return None
        dV = product(dS, X, room[: len(dS)])
        if complete is not None:
            complete(dV, dS, piece.first)
        unscaled = Unscaled(dV, V, factor)
        if dP is None:
            return unscaled
        piece.finish(unscaled, None, dP[piece.first : piece.last])
        return None

    def memory(self, X: Tensor, P: Tensor) -> tuple[Any, ...]:
        """Unit rows of a chunk and 1 / |p|, or None; and dX, room for dV, and dP where there are several chunks."""
        of, new = self.common, X.new_empty
        (B, C, D), rows = of.shape, of.rows
        U = None if of.as_they_are else new((rows, D), dtype=of.operand)
        norm = None if self.pieces[0].normalize is None else new(rows, dtype=of.compute)
        dX = new((B, D), dtype=of.compute) if self.wanted[0] else None
        room = new((rows, D), dtype=of.compute) if self.wanted[1] else None
        several = self.wanted[1] and rows < C
        return U, norm, (dX, room, new_rows(P, C, by_columns(P), P.dtype) if several else None)

    def results(
        self,
        parts: Tensor,
        of_X: tuple[Tensor, Tensor],
        into: tuple[Tensor | None, Tensor | None, Tensor | None],
        left: Unscaled | None,
    ) -> Results:
        """The loss from its parts, and the gradients; ``of_X``: rows that give dX, and their factors."""
        dX, _, dP = into
        unscaled = None if dX is None else Unscaled(dX, *of_X)
        return self.loss(parts), [unscaled, left if dP is None else dP]  # type: ignore[list-item]  # scale() makes them

    def loss(self, totals: Tensor) -> Tensor:
        """The sum of the parts of the loss, ()."""
        loss = totals.new_empty((), dtype=self.common.compute)
        self.add(totals, loss)
        return loss

    def scale(self, gradients: list[Any], upstream: Tensor) -> list[Tensor | None]:
        """The gradients times the upstream gradient (); some go through the Jacobian here."""
        scaled: list[Tensor | None] = []
        with device.current(upstream):
            for gradient, finish in zip(gradients, self.finish, strict=True):
                if isinstance(gradient, Unscaled):
                    scaled.append(finish(gradient, upstream))
                    continue
                if gradient is not None:
                    TritonRows().scale(gradient, upstream)
                scaled.append(gradient)
        return scaled


def gpu_plan_serves(X: Any, P: Any, labels: Any, weights: Any) -> bool:
    """Whether the kernels of a planned step read these tensors."""
    if X.dim() != 2 or P.dim() != 2 or labels.shape != X.shape[:1] or X.shape[1] != P.shape[1]:
        return False
    if weights is not None:
        floating = weights.is_floating_point() or weights.dtype == torch.bool
        if not floating or weights.requires_grad or weights.shape != labels.shape:
            return False
    vectors = [vector for vector in (labels, weights) if vector is not None]
    if labels.dtype != torch.int64 or not all(vector.is_contiguous() for vector in vectors):
        return False
    if not all(tensor.device == X.device for tensor in (P, *vectors)) or X.dtype not in FLOATING:
        return False
    whole = P.is_contiguous() or P.t().is_contiguous()
    wanted = torch.is_grad_enabled() and (X.requires_grad or P.requires_grad)
    return bool(wanted and whole and P.dtype in FLOATING and X.numel() and P.numel())


def common_of(X: Tensor, P: Tensor) -> Common:
    """What a plan of these tensors knows of them."""
    (B, D), C, kind, compute = X.shape, len(P), X.device.type, compute_dtype(X, P)
    operand = product_dtype(operand_dtype(compute, X, autocast=True, lanes=True), compute, X.device)
    autocast = kind != "meta" and torch.is_autocast_enabled(kind)
    rows = min(C, chunk_rows(C, B + 2 * D, X.device))
    as_they_are = TritonRows().as_they_are(P, operand) is not None
    return Common(X.device, (B, C, D), compute, operand, autocast, rows, as_they_are)


def chunks_of(common: Common) -> list[tuple[int, int]]:
    """First class of each chunk, and the one after its last."""
    C, rows = common.shape[1], common.rows
    return [(first, min(C, first + rows)) for first in range(0, C, rows)]


def prepare_launch(
    common: Common, X: Tensor, distinct: bool, bias: float, target: tuple[Tensor, float] | None = None
) -> Launch:
    """The first launch of a step: see :func:`~robustdml_ops.engine.rows.step_kernels.prepare_samples`.

    ``target``: proxies, and the factor of the labels' cosines.
    """
    from robustdml_ops.engine.rows.step_kernels import prepare_samples as kernel

    B, C, D = common.shape
    tile = rows_launch(D, device.tile_of("rows", X))
    numbers = {"B": B, "D": D, "classes": C, "row_stride": X.stride(0), "column_stride": X.stride(1), "bias": bias}
    strides = (0, 0) if target is None else target[0].stride()
    numbers |= {"P_row_stride": strides[0], "P_column_stride": strides[1], "scale": target[1] if target else 0.0}
    # Labels and weights are checked by the kernel's assertions; those of integer overflow stay out.
    checks = {"largest": largest_weight(common.compute), "debug": True, "sanitize_overflow": False}
    tensors = ("X", "U", "inverse_norm", "labels", "weights", "log_weights", "counts", "P", "target")
    blocks = {"DISTINCT": distinct, "BLOCK_B": device.block_of(B, 256), **tile}
    return Launch(kernel, device.grid_of(B, tile["BLOCK_R"]), tensors, {**numbers, **checks, **blocks})


def normalize_launch(common: Common, P: Tensor, n: int) -> Launch:
    """Unit rows of ``n`` proxies, or 1 / |p| alone."""
    from robustdml_ops.engine.rows.kernels import normalize_rows as kernel

    D = common.shape[2]
    tile = rows_launch(D, device.tile_of("rows", P))
    fixed = {"n": n, "D": D, "row_stride": P.stride(0), "column_stride": P.stride(1), **tile}
    return Launch(kernel, device.grid_of(n, tile["BLOCK_R"]), ("P", "U", "inverse_norm"), fixed)


def finish_launches(common: Common, X: Tensor, P: Tensor) -> tuple[Finish, Finish, dict[int, Finish]]:
    """Gradients of the embeddings, of all proxies, and of chunks of proxies by their rows."""
    B, C, D = common.shape
    V, columns = P.stride() if common.as_they_are else (D, 1), by_columns(P)
    of_chunks = {
        n: finish_launch(n, D, P, P.dtype, V, P.stride(), columns, not common.as_they_are)
        for n in {C, *(last - first for first, last in chunks_of(common))}
    }
    return finish_launch(B, D, P, X.dtype), of_chunks[C], of_chunks


def finish_launch(
    n: int,
    D: int,
    like: Tensor,
    dtype: torch.dtype,
    V: tuple[int, ...] | None = None,
    out: tuple[int, ...] | None = None,
    columns: bool = False,
    unit: bool = True,
) -> Finish:
    """The gradient of ``n`` rows, of strides ``out``, from that of rows as multiplied, of strides ``V``, ``unit``."""
    from robustdml_ops.engine.rows.kernels import subtract_radial as kernel

    tile, rows = rows_launch(D, device.tile_of("rows", like)), (D, 1)
    names = ("n", "D", *(f"{of}{which}_stride" for of in ("G_", "", "out_") for which in ("row", "column")))
    numbers = dict(zip(names, (n, D, *rows, *(V or rows), *(out or rows)), strict=True))
    tensors, fixed = ("G", "V", "row_factor", "factor", "out"), {**numbers, "UNIT": unit, **tile}
    return Finish(Launch(kernel, device.grid_of(n, tile["BLOCK_R"]), tensors, fixed), dtype, columns)


def add_launch(n: int) -> Launch:
    """The sum of ``n`` parts of a loss."""
    from robustdml_ops.engine.rows.step_kernels import add_parts as kernel

    block = device.block_of(n, 8192)
    tile = device.launch(BLOCK=block, num_warps=max(1, min(16, block // 128)), num_stages=1)
    return Launch(kernel, (1,), ("parts", "total"), {"n": n, **tile})
