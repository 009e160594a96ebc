"""Whether a sample is of no class.

Classes are compared by normal densities. Whether a sample is of any class depends on Student's t with ν degrees of
freedom: the tails of a normal density are too light, and right samples far out in their class would be of none. Of n
independent dimensions with the scaled squared distance d²

    log p = peak − (ν + n)/2 log(1 + d²/ν),      which for ν → ∞ is the normal density, peak − d²/2.
"""

import math

import torch
from torch import Tensor

from robustdml.audit.class_model import ClassModel

# Share of samples that are of no class, as far as nothing else is known.
UNNAMED = 0.002
# ν, of the tails of a class: chosen on validation letters.
FREEDOM = 8.0


def no_class(
    model: ClassModel, Z: Tensor, density: Tensor, distance: Tensor, prior: Tensor, sharpness: float
) -> Tensor:
    """Log-probability that a row (B, D) is of no class, relative to the likeliest of some classes (B, K), by tails."""
    heavy = (_heavy_tailed(density, distance, sharpness, Z.shape[1]) + prior).amax(1)
    return _heavy_tailed(*model.unnamed(Z), sharpness, Z.shape[1]) + math.log(UNNAMED) - heavy


def _heavy_tailed(density: Tensor, distance: Tensor, sharpness: float, width: int) -> Tensor:
    """Log-density of Student's t at a squared distance, where the normal one of D dimensions is `density`."""
    peak = density + distance / 2
    return sharpness * peak - (FREEDOM + sharpness * width) / 2 * torch.log1p(sharpness / FREEDOM * distance)


def independent_share(distances: Tensor, width: int) -> float:
    """Share of D dimensions that are independent, by squared distances of samples from their nearest class, (n,)."""
    # By quantiles: samples of no class are far away.
    low, high = distances.clamp(min=1e-12).log().quantile(torch.tensor([0.16, 0.84])).tolist()
    return float(2 / max((high - low) / 2, 1e-3) ** 2 / width)
