"""Unit rows and their Jacobian in Triton."""

from torch import Tensor

from robustdml_ops.engine.triton.device import current, grid_of


def normalize_rows(P: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """U = P / |P| by rows and inverse_norm = 1 / |P|; zero rows give zeros."""
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.rows import normalize_rows as kernel

    n, D = P.shape
    parameters = launch.rows(D)
    with current(U):
        kernel[grid_of(n, parameters["BLOCK_R"])](P, U, inverse_norm, n, D, *P.stride(), **parameters)


def normalize_rows_backward(G: Tensor, U: Tensor, inverse_norm: Tensor) -> None:
    """G ← (G − (G·U) U) · inverse_norm by rows: the Jacobian of the normalisation, in place."""
    from robustdml_ops.engine.triton.kernels import launch
    from robustdml_ops.engine.triton.kernels.rows import normalize_rows_backward as kernel

    n, D = G.shape
    parameters = launch.rows(D)
    with current(G):
        kernel[grid_of(n, parameters["BLOCK_R"])](G, U, inverse_norm, n, D, **parameters)


def operand(P: Tensor, U: Tensor, inverse_norm: Tensor) -> Tensor:
    """Unit anchors in ``U``: what enters the products, so that they are cosines."""
    normalize_rows(P, U, inverse_norm)
    return U


def finish(G: Tensor, V: Tensor, inverse_norm: Tensor) -> None:
    """G ← dL/dP, where G = dL/dSᵀ·X and V came from :func:`operand`."""
    normalize_rows_backward(G, V, inverse_norm)
