"""Unit rows and their Jacobian in Triton."""

from collections.abc import Mapping

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import Launch, block_of, current, grid_of, launch, tile_of
from robustdml_ops.engine.rows.backend import RowsBackend

# Elements a program multiplies at a time, and programs that share a matrix: each asks for the factor once.
_BLOCK, _PROGRAMS = 2048, 1024
_SCALE = launch(BLOCK=_BLOCK, num_warps=8, num_stages=1)


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

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        from robustdml_ops.engine.rows.kernels import normalize_rows_backward as kernel

        n, D = G.shape
        parameters = rows_launch(D, tile_of("rows", G))
        with current(G):
            kernel[grid_of(n, parameters["BLOCK_R"])](G, U, inverse_norm, n, D, **parameters)

    def finish(self, G: Tensor, V: Tensor, inverse_norm: Tensor, unit: bool) -> None:
        from robustdml_ops.engine.rows.kernels import subtract_radial as kernel

        if unit:
            self.normalize_rows_backward(G, V, inverse_norm)
            return
        n, D = G.shape
        parameters = rows_launch(D, tile_of("rows", G))
        with current(G):
            kernel[grid_of(n, parameters["BLOCK_R"])](G, V, n, D, *G.stride(), *V.stride(), **parameters)

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
