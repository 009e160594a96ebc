"""Unit rows and their Jacobian in plain PyTorch."""

import torch
from torch import Tensor

# Norms below this are zero vectors: cosine 0 with everything and no gradient, instead of a gradient of 1e12.
TINY_NORM = 1e-12


def normalize_rows(P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """U = P / |P| by rows and inverse_norm = 1 / |P|; zero rows give zeros."""
    rows = P.to(inverse_norm.dtype)
    norm = torch.linalg.vector_norm(rows, dim=1)
    # NaN must stay NaN, so ask for "below" rather than "not above"; 1 / inf would pass inf off as a zero row.
    inverse = torch.where(norm < TINY_NORM, torch.zeros_like(norm), norm.reciprocal())
    inverse_norm.copy_(inverse.masked_fill(norm == torch.inf, torch.nan))
    U.copy_(rows * inverse_norm[:, None])


def normalize_rows_backward(G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """G ← (G − (G·U) U) · inverse_norm by rows: the Jacobian of the normalisation, in place."""
    unit = U.to(G.dtype)
    G.sub_((G * unit).sum(1, keepdim=True) * unit).mul_(inverse_norm[:, None])


def operand(P: Tensor, U: Tensor, inverse_norm: Tensor) -> Tensor:
    """Unit anchors in ``U``: what enters the products, so that they are cosines."""
    normalize_rows(P, U, inverse_norm)
    return U


def finish(G: Tensor, V: Tensor, inverse_norm: Tensor) -> None:
    """G ← dL/dP, where G = dL/dSᵀ·X and V came from :func:`operand`."""
    normalize_rows_backward(G, V, inverse_norm)
