"""The cosine of an angle that a margin was added to, as a function of the cosine."""

import math

import torch
from torch import Tensor


def angular_margin(cosines: Tensor, margin: float) -> Tensor:
    """cos(θ + m) where θ ≤ π − m, and cos θ − m·sin m above, where cos(θ + m) would rise again.

    Notes
    -----
    cos(θ + m) = cos θ cos m − sin θ sin m. The sine's derivative with respect to the cosine, −cot θ, has a pole where
    the vectors are parallel; what reaches a vector, cot θ times the length sin θ of its tangent, has none, but no
    direction either. There the sine is a constant 0, and its gradient 0.
    """
    with torch.no_grad():
        below = torch.acos(cosines.clamp(-1, 1)) <= math.pi - margin
        parallel = cosines.abs() >= 1
    # (1 − c)(1 + c) keeps the digits near ±1 that 1 − c² would lose.
    squares = ((1 - cosines) * (1 + cosines)).masked_fill(parallel, 1)
    sines = squares.sqrt().masked_fill(parallel, 0)
    moved = cosines * math.cos(margin) - sines * math.sin(margin)
    return torch.where(below, moved, cosines - margin * math.sin(margin))
