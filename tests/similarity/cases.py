"""Matrices and their cosines, for every backend."""

import torch

from robustdml_ops.ops import similarity


def matrices(B, C, D, dtype=torch.float32, device="cpu"):
    return torch.randn(B, D).mul(3).to(device, dtype), torch.randn(C, D).mul(0.1).to(device, dtype)


def cosines(X, P):
    return torch.nn.functional.cosine_similarity(X.double()[:, None], P.double()[None], dim=2)


def assert_rows_without_a_direction(backend, device="cpu"):
    """Zero rows have cosine 0 with everything and no gradient; NaN stays NaN."""
    X, P = matrices(5, 6, 3, device=device)
    X[1], X[2], P[2] = 0, 1e-39, 0
    P[4, 1], X[3, 0] = torch.inf, torch.nan
    S = similarity(X.requires_grad_(), P, backend=backend)
    finite = [0, 1, 2, 3, 5]
    assert (S[1:3, finite] == 0).all()
    assert (S[[0, 1, 2, 4], 2] == 0).all()
    assert S[:, 4].isnan().all()
    assert S[3].isnan().all()
    similarity(X, P[finite], backend=backend)[[0, 1, 2, 4]].sum().backward()
    assert (X.grad[1:3] == 0).all() and (X.grad[0] != 0).all()
