"""Rows of the proxies: the layouts of a matrix, memory of its gradient, and unit rows on each backend."""

import sys
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import choose, has_no_values, in_registry
from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, tile_of
from robustdml_ops.engine.rows.lengths import all_within_reach, inverse_lengths, out_of_reach, unit_rows

# Gradients of fewer bytes an allocator keeps by itself. A fresh matrix is mapped page by page while it is first
# written: 9 of 120 ms of a step with 10⁵ classes of 128 dimensions.
_LEAST = 1 << 20
# By the parameter: memory of its last gradient, which ``zero_grad()`` lets go of before the next is made, and of what
# else a step makes of its size.
_storages: MutableMapping[Tensor, dict[str, torch.UntypedStorage]] = WeakIdKeyDictionary()
_lock = threading.Lock()

# Elements a program multiplies at a time, and programs that share a matrix: each asks for the factor once.
_BLOCK, _PROGRAMS = 2048, 1024
_SCALE = launch(BLOCK=_BLOCK, num_warps=8, num_stages=1)


def by_columns(P: Tensor) -> bool:
    """Whether columns are contiguous, as in the transpose of a parameter (D, n)."""
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
    rows, D = proxies.shape
    if by_columns(proxies):
        return reused_matrix(proxies, "gradient", (D, rows), proxies.dtype).t()
    return reused_matrix(proxies, "gradient", (rows, D), proxies.dtype)


def reused_matrix(proxies: Tensor, purpose: str, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """A matrix without values, in memory that the last step had for the same ``purpose``, if nobody has it any more."""
    bytes_ = shape[0] * shape[1] * dtype.itemsize
    if bytes_ < _LEAST or proxies.device.type != "cpu" or has_no_values(proxies):
        return proxies.new_empty(shape, dtype=dtype)
    # A view of a parameter comes and goes with each call.
    parameter = proxies if proxies._base is None else proxies._base
    storage = _take(parameter, purpose, bytes_)
    if storage is None:
        matrix = proxies.new_empty(shape, dtype=dtype)
    else:
        matrix = proxies.new_empty(0, dtype=dtype).set_(storage, 0, shape, (shape[1], 1))
    with _lock:
        _storages.setdefault(parameter, {})[purpose] = matrix.untyped_storage()
    return matrix


def forget_matrices(purpose: str) -> None:
    """Give back the memory that steps had for this ``purpose``, once nobody has it any more."""
    with _lock:
        for storages in _storages.values():
            storages.pop(purpose, None)


def _take(parameter: Tensor, purpose: str, bytes_: int) -> torch.UntypedStorage | None:
    """The memory of the last matrix for this ``purpose``, if it has this size and no other reference."""
    with _lock:
        holder = [_storages.get(parameter, {}).pop(purpose, None)]
    if holder[0] is None or holder[0].nbytes() != bytes_:
        return None
    # Held by no tensor, nor by what shares memory with one; nor, as an object of Python, by anything but the list.
    free = torch._C._storage_Use_Count(holder[0]._cdata) == 1 and _references(holder) == _ALONE
    return holder[0] if free else None


def _references(holder: list[Any]) -> int:
    """Count the references to what a list holds, as Python counts them, to be compared with `_ALONE`."""
    return sys.getrefcount(holder[0])


# Of what a list alone holds: how many Python itself has of it meanwhile differs, 3.14 counts fewer than 3.13.
_ALONE = _references([object()])


class RowsBackend:
    """Base class of every backend that serves a sweep; itself on every device, without a compiler."""

    # Matrices of the size of S that its epilogues make on the way, beside S.
    temporaries = 8
    # Whether its epilogues round dL/dS to the operand type, where they are given room for it.
    rounds = False

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> bool:
        """U (n, D) = P / |P| by rows and inverse_norm (n,) = 1 / |P|; zero rows give zeros, NaN or inf NaN."""
        # True if a row may be so short that its gradient overflows; False on a GPU.
        rows = P.to(inverse_norm.dtype)
        inverse_norm.copy_(inverse_lengths(rows))
        U.copy_(rows * inverse_norm[:, None])
        if P.device.type != "cpu" or all_within_reach(inverse_norm):
            return False
        # 1 / |p| alone may be a number of few digits, or none.
        far = out_of_reach(inverse_norm)
        U[far] = unit_rows(rows[far]).to(U.dtype)
        return True

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """G ← (G − (G·U) U) · inverse_norm by rows, in place: the Jacobian of the normalisation."""
        unit = U.to(G.dtype)
        G.sub_((G * unit).sum(1, keepdim=True) * unit).mul_(inverse_norm[:, None])

    def cosines_at(self, P: Tensor, X: Tensor, places: Tensor) -> Tensor:
        """Cosines of X (B, D), compute type, with the rows of P at ``places`` (B, …): ∞ for NaN, −∞ of no row."""
        P, X = P.detach(), X.detach()
        if len(P) == 0:
            return X.new_full(places.shape, -torch.inf)
        rows = P[places.clamp(0, len(P) - 1)].to(X.dtype)
        unit = unit_rows(rows.flatten(0, -2)).view(rows.shape)
        samples = unit_rows(X).view(len(X), *(1,) * (places.dim() - 1), X.shape[1])
        cosines = (unit * samples).sum(-1).nan_to_num(torch.inf)
        return cosines.masked_fill((places < 0) | (places >= len(P)), -torch.inf)

    def lanes_serve(self, proxies: Tensor, operand: torch.dtype, compute: torch.dtype) -> bool:
        """Whether one native call sweeps over the proxies."""
        return False

    def reads_columns(self, P: Tensor) -> bool:
        """Whether U and G, too, have the elements of a column side by side where P has; else those of a row."""
        return by_columns(P)

    def as_they_are(self, P: Tensor, dtype: torch.dtype) -> Tensor | None:
        """P in type ``dtype`` for products that precede :meth:`inverse_norms` and :meth:`finish`; None: they need U."""
        return None

    def inverse_norms(self, P: Tensor, inverse_norm: Tensor) -> bool:
        """inverse_norm (n,) = 1 / |P| by rows; False where products of P as it is overflow or lose digits. CPU only."""
        inverse_norm.copy_(inverse_lengths(P))
        return all_within_reach(inverse_norm) or not out_of_reach(inverse_norm).any()

    def scale(self, G: Tensor, factor: Tensor) -> None:
        """G ← G · factor, in place, for an upstream gradient () that is 1 most often."""
        G.mul_(factor)

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor, unit: bool, out: Tensor | None = None) -> Tensor:
        """dL/dP from G = dS·X, in its memory or in ``out``; V: the unit rows, or P where G has the factor 1 / |P|."""
        self.normalize_rows_backward(G, V, inverse_norm)
        return G


class NativeRows(RowsBackend):
    """On the CPU and on CUDA devices."""

    temporaries = 0

    def lanes_serve(self, proxies: Tensor, operand: torch.dtype, compute: torch.dtype) -> bool:
        return module.lanes_serve(proxies, operand, compute)

    def reads_columns(self, P: Tensor) -> bool:
        return not module.on_gpu(P) and by_columns(P)

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> bool:
        # The rows may be freed while their kernel waits: the allocator hands memory to later work of the stream only.
        if module.on_gpu(U):
            rows = P.contiguous()
            _on_stream(f"normalize_rows_cuda_{module.SUFFIX[P.dtype]}", rows, U, inverse_norm)
            return False
        return not _on_threads("normalize_rows", _readable(P, U.dtype, by_columns(U)), U, inverse_norm)

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        if module.on_gpu(U):
            _on_stream("normalize_rows_backward_cuda", G, U, inverse_norm)
            return
        _on_threads("normalize_rows_backward", G, U, inverse_norm)

    def cosines_at(self, P: Tensor, X: Tensor, places: Tensor) -> Tensor:
        if module.on_gpu(P) or P.dtype != X.dtype:
            return super().cosines_at(P, X, places)
        cosines, places = X.new_empty(places.shape), places.contiguous()
        matrices = ((matrix.data_ptr(), *matrix.stride()) for matrix in (P, X))
        kernel = getattr(module.library, f"cosines_at_{module.SUFFIX[X.dtype]}")
        each = places.numel() // max(1, len(X))
        sizes = (len(P), len(X), each, X.shape[1])
        kernel(*matrices, places.data_ptr(), cosines.data_ptr(), *sizes, torch.get_num_threads())
        return cosines

    def as_they_are(self, P: Tensor, dtype: torch.dtype) -> Tensor | None:
        """On the CPU, where norms are taken after the product, while P is warm: a pass before would cost time."""
        return None if module.on_gpu(P) else _readable(P, dtype, by_columns(P))

    def inverse_norms(self, P: Tensor, inverse_norm: Tensor) -> bool:
        return bool(_on_threads("inverse_norms", _readable(P, P.dtype, by_columns(P)), None, inverse_norm))

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor, unit: bool, out: Tensor | None = None) -> Tensor:
        if unit:
            return super().finish(G, V, inverse_norm, unit)
        _on_threads("subtract_radial", G, V, inverse_norm)
        return G


def _readable(P: Tensor, dtype: torch.dtype, columns: bool) -> Tensor:
    """P in ``dtype`` with the elements of its columns, or of its rows, side by side: itself where it is so."""
    if P.dtype == dtype and P.stride(0 if columns else 1) == 1:
        return P
    return new_rows(P, len(P), columns, dtype).copy_(P)


def _on_threads(name: str, rows: Tensor, other: Tensor | None, inverse_norm: Tensor) -> Any:
    kernel = getattr(module.library, f"{name}_{module.SUFFIX[rows.dtype]}")
    first = (rows.data_ptr(), *rows.stride())
    matrices = (first,) if other is None else (first, (other.data_ptr(), *other.stride()))
    return kernel(*matrices, inverse_norm.data_ptr(), *rows.shape, torch.get_num_threads())


def _on_stream(name: str, rows: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    kernel = getattr(module.library, f"{name}_{module.SUFFIX[U.dtype]}")
    with module.current_stream(U.device) as stream:
        kernel(rows.data_ptr(), U.data_ptr(), inverse_norm.data_ptr(), *U.shape, stream)


class TritonRows(RowsBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    temporaries = 0
    rounds = True

    def reads_columns(self, P: Tensor) -> bool:
        return False

    def normalize_rows(self, P: Tensor, U: Tensor | None, inverse_norm: Tensor) -> bool:
        from robustdml_ops.engine.rows.kernels import normalize_rows as kernel

        n, D = P.shape
        parameters = rows_launch(D, tile_of("rows", P))
        with current(P):
            kernel[grid_of(n, parameters["BLOCK_R"])](P, U, inverse_norm, n, D, *P.stride(), **parameters)
        return False

    def as_they_are(self, P: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Rows of bfloat16, which need no rounding after their normalisation."""
        return P if P.dtype == dtype == torch.bfloat16 and 1 in P.stride() else None

    def inverse_norms(self, P: Tensor, inverse_norm: Tensor) -> bool:
        self.normalize_rows(P, None, inverse_norm)
        return True

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        self.finish(G, U, inverse_norm, True)

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor, unit: bool, out: Tensor | None = None) -> Tensor:
        from robustdml_ops.engine.rows.kernels import subtract_radial as kernel

        out = G if out is None else out
        parameters, strides = rows_launch(G.shape[1], tile_of("rows", G)), (*G.stride(), *V.stride(), *out.stride())
        with current(G):
            kernel[grid_of(len(G), parameters["BLOCK_R"])](
                G, V, inverse_norm if unit else None, None, out, *G.shape, *strides, UNIT=unit, **parameters
            )
        return out

    def scale(self, G: Tensor, factor: Tensor) -> None:
        from robustdml_ops.engine.rows.kernels import scale as kernel

        if not G.is_contiguous() and not (G.dim() == 2 and G.t().is_contiguous()):
            super().scale(G, factor)
        elif G.numel():
            with current(G):
                kernel[(min(_PROGRAMS, grid_of(G.numel(), _BLOCK)[0]),)](G, factor, G.numel(), **_SCALE)


def rows_launch(D: int, tile: Mapping[str, int]) -> Launch:
    """Normalisation of rows: 2048 elements a program by default, 16 a thread, whole rows up to half of them."""
    elements = tile["elements"]
    BLOCK_D = block_of(D, elements // 2)
    return launch(BLOCK_R=elements // BLOCK_D, BLOCK_D=BLOCK_D, num_warps=tile["num_warps"], num_stages=1)


BACKENDS: dict[str, RowsBackend] = {"native": NativeRows(), "triton": TritonRows(), "eager": RowsBackend()}


def normalized(rows: Tensor, dtype: torch.dtype, backend: str | None) -> Tensor:
    """Rows (n, D) of any floating type scaled to length 1, in ``dtype``, float32 or float64; zero rows stay zero."""
    if rows.device.type == "cpu" or has_no_values(rows):
        return unit_rows(rows.to(dtype))
    U = rows.new_empty(rows.shape, dtype=dtype)
    if len(rows):
        choose(BACKENDS, backend, rows.device, dtype).normalize_rows(rows, U, rows.new_empty(len(rows), dtype=dtype))
    return U


def cosines_at(P: Tensor, X: Tensor, places: Tensor, backend: str | None) -> Tensor:
    """Cosines of X (B, D), compute type, with the rows of P at ``places`` (B, …): ∞ for NaN, −∞ of no row."""
    chosen = RowsBackend() if in_registry(X) else choose(BACKENDS, backend, X.device, X.dtype)
    return chosen.cosines_at(P, X, places)


def scale_gradients(
    gradients: Sequence[Tensor | None],
    factor: Tensor,
    backends: Mapping[str, RowsBackend],
    backend: str,
    types: Sequence[torch.dtype | None],
) -> list[Tensor | None]:
    """Gradients of a sweep times ``factor`` (), in their own memory, or on a GPU in their one of ``types``."""
    if has_no_values(factor):
        return [None if gradient is None else (gradient * factor).to(gradient.dtype) for gradient in gradients]
    # On the CPU the usual upstream of exactly 1 saves a pass over the proxies; a GPU's kernel looks at it itself.
    scaled = list(gradients)
    if factor.device.type != "cpu" or factor.item() != 1:
        for place, (gradient, dtype) in enumerate(zip(gradients, types, strict=True)):
            if gradient is None:
                continue
            if factor.device.type != "cpu" and dtype is not None and dtype != gradient.dtype:
                scaled[place] = torch.mul(gradient, factor, out=gradient.new_empty(gradient.shape, dtype=dtype))
            else:
                choose(backends, backend, gradient.device, factor.dtype).scale(gradient, factor)
    return scaled
