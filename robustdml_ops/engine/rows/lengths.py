"""1 / |row|, rows of length 1 at any scale, and log-sum-exps beside a 1 by rows, in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import in_registry

# Lengths whose squares the type holds with all of its digits, and likewise products of such rows with unit vectors.
SHORTEST = {torch.float32: 1e-9, torch.float64: 1e-100}
LONGEST = {torch.float32: 1e9, torch.float64: 1e100}


def inverse_lengths(rows: Tensor) -> Tensor:
    """1 / |row|, (n,), not differentiable; 0 below the smallest normal number, NaN for rows with NaN or inf."""
    if rows.device.type != "cpu":
        # Which rows are out of reach is a question to the device, and nothing is to wait for the answer.
        if rows.dtype == torch.float64:
            return _inverse_lengths_anywhere(rows)
        norm: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        inverse = torch.where(norm < torch.finfo(rows.dtype).tiny, 0, norm.reciprocal())
        return inverse.masked_fill(norm == torch.inf, torch.nan).to(rows.dtype)
    norm = torch.linalg.vector_norm(rows, dim=1)
    inverse = norm.reciprocal()
    if not all_within_reach(norm):
        far = ~_within_reach(norm)
        inverse[far] = _inverse_lengths_anywhere(rows[far])
    return inverse


def all_within_reach(norm: Tensor, power: int = 1) -> bool:
    """Whether every length, inverse length or ``power`` of a length is within reach; False for 0 and NaN. CPU only."""
    if norm.numel() == 0:
        return True
    least, largest = norm.detach().aminmax()
    return float(least) > SHORTEST[norm.dtype] ** power and float(largest) < LONGEST[norm.dtype] ** power


def out_of_reach(inverse_norm: Tensor) -> Tensor:
    """Rows that must be scaled before they are multiplied, (n,) bool; False for zero rows and rows with NaN or inf."""
    dtype = inverse_norm.dtype
    long = (inverse_norm > 0) & (inverse_norm < 1 / LONGEST[dtype])
    return long | (inverse_norm > 1 / SHORTEST[dtype])


def unit_rows(rows: Tensor) -> Tensor:
    """Rows scaled to length 1, by ordinary differentiable PyTorch; zero rows stay zero, and so does their gradient."""
    if rows.device.type == "cpu" and not in_registry(rows):
        norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        if all_within_reach(norm):
            return rows / norm
    scaled, factor = _near_one(rows)
    norm = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / norm.masked_fill(_is_zero(norm, factor), torch.inf)


def unit_rows_twice(rows: Tensor) -> Tensor:
    """As :func:`unit_rows`, but a zero row has a second derivative, too: 0."""
    unit, zero, *_ = _unit_where_not_zero(rows)
    return unit.masked_fill(zero, 0)


def unit_rows_backward(rows: Tensor, G: Tensor) -> Tensor:
    """Gradient of :func:`unit_rows_twice` for the upstream gradient G (n, D), itself differentiable."""
    unit, zero, norm, factor = _unit_where_not_zero(rows)
    gradient: Tensor = (G - (G * unit).sum(1, keepdim=True) * unit) / norm * factor
    return gradient.masked_fill(zero, 0)


def log_one_plus_sum(exponent: Tensor, lse: Tensor) -> Tensor:
    """Lse ← log(1 + Σ exp(exponent)) by rows; returns the weights exp(exponent) / (1 + Σ), in the place of exponent."""
    shift = exponent.amax(1, keepdim=True).clamp_(min=0)
    weight = exponent.sub_(shift).exp_()
    total = weight.sum(1, keepdim=True)
    one = shift.neg().exp_()
    # log1p where nothing was shifted: a sum far below 1 must not be rounded away.
    value = torch.where(shift == 0, total.log1p(), shift + (one + total).log())
    lse.copy_(value[:, 0])
    return weight.div_(one + total)


def _unit_where_not_zero(rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit rows, ones for zero rows; which rows are zero; the lengths of rows times a factor, and that; (n, 1) each."""
    scaled, factor = _near_one(rows)
    zero = _is_zero(torch.linalg.vector_norm(scaled.detach(), dim=1, keepdim=True), factor)
    filled = scaled.masked_fill(zero, 1)
    norm = torch.linalg.vector_norm(filled, dim=1, keepdim=True)
    return filled / norm, zero, norm, factor


def _within_reach(norm: Tensor) -> Tensor:
    return (norm > SHORTEST[norm.dtype]) & (norm < LONGEST[norm.dtype])


def _inverse_lengths_anywhere(rows: Tensor) -> Tensor:
    scaled, factor = _near_one(rows)
    norm: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    inverse = torch.where(_is_zero(norm, factor), 0, factor / norm)
    return inverse.masked_fill(norm == torch.inf, torch.nan)[:, 0]


def _near_one(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows times powers of two that bring their lengths within reach, and those, (n, 1): 1 where they are."""
    norm: Tensor = torch.linalg.vector_norm(rows.detach(), dim=1, keepdim=True)
    up = 2.0 ** (80 if rows.dtype == torch.float32 else 600)
    factor = torch.full_like(norm, 1 / up).masked_fill(norm < 1, up).masked_fill(_within_reach(norm), 1)
    return rows * factor, factor


def _is_zero(norm: Tensor, factor: Tensor) -> Tensor:
    """Whether a row is shorter than the smallest normal number, given its length times ``factor``."""
    return norm < torch.finfo(norm.dtype).tiny * factor
