"""Unit rows and their Jacobian in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.rows.backend import RowsBackend, by_columns
from robustdml_ops.rows.lengths import TINY_NORM, inverse_lengths


class EagerRows(RowsBackend):
    """On every device, without a compiler."""

    def reads_columns(self, P: Tensor) -> bool:
        """As :meth:`RowsBackend.reads_columns`."""
        return by_columns(P)

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """As :meth:`RowsBackend.normalize_rows`."""
        rows = P.to(inverse_norm.dtype)
        inverse_norm.copy_(inverse_lengths(rows))
        U.copy_(rows * inverse_norm[:, None])

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """As :meth:`RowsBackend.normalize_rows_backward`."""
        unit = U.to(G.dtype)
        G.sub_((G * unit).sum(1, keepdim=True) * unit).mul_(inverse_norm[:, None])


def unit_rows(rows: Tensor) -> Tensor:
    """Rows scaled to length 1, by ordinary differentiable PyTorch; zero rows stay zero, and so does their gradient.

    Parameters
    ----------
    rows : Tensor
        (n, D), floating point.

    Returns
    -------
    Tensor
        (n, D), as ``rows``.
    """
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / norm.masked_fill(norm < TINY_NORM, torch.inf)
