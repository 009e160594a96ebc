"""Unit rows and their Jacobian in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.rows.backend import TINY_NORM, RowsBackend


class EagerRows(RowsBackend):
    """On every device, without a compiler."""

    def normalize_rows(self, P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """As :meth:`RowsBackend.normalize_rows`."""
        rows = P.to(inverse_norm.dtype)
        inverse_norm.copy_(inverse_lengths(rows))
        U.copy_(rows * inverse_norm[:, None])

    def normalize_rows_backward(self, G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
        """As :meth:`RowsBackend.normalize_rows_backward`."""
        unit = U.to(G.dtype)
        G.sub_((G * unit).sum(1, keepdim=True) * unit).mul_(inverse_norm[:, None])


def inverse_lengths(rows: Tensor) -> Tensor:
    """1 / |row|, (n,): 0 for zero rows, NaN for rows with NaN or inf."""
    norm = torch.linalg.vector_norm(rows, dim=1)
    # NaN must stay NaN, so ask for "below" rather than "not above"; 1 / inf would pass inf off as a zero row.
    inverse = torch.where(norm < TINY_NORM, torch.zeros_like(norm), norm.reciprocal())
    return inverse.masked_fill(norm == torch.inf, torch.nan)


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
