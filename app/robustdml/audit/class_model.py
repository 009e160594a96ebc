"""What the samples of each class look like: probabilistic linear discriminant analysis, without a sample's own copy.

All classes share the covariance W of a sample about the mean of its class, and the means have the covariance B. In the
coordinates where W is the identity and B diagonal, diag(ψ), every dimension stands alone. Of a class with n samples of
sum s the mean has the posterior N(s / (n + 1/ψ), 1 / (n + 1/ψ)), so a further sample z has the predictive density

    N(z; s / (n + 1/ψ), 1 + 1 / (n + 1/ψ)),      and of a class that nobody has named N(z; 0, 1 + ψ).

A sample that counts for a class with weight r is left out by n − r and s − r z. A class of few samples is vague by
itself, and one of none is the class that nobody has named.

Classes are compared by these densities. Whether a sample is of any class depends on Student's t with ν degrees of
freedom: the tails of a normal density are too light, and right samples far out in their class would be of none. Of n
independent dimensions with the scaled squared distance d²

    log p = peak − (ν + n)/2 log(1 + d²/ν),      which for ν → ∞ is the normal density, peak − d²/2.

Source: Ioffe, *Probabilistic Linear Discriminant Analysis*, ECCV 2006; the weights are those of the rounds in
`robustdml.audit.rounds`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml.arrays import blocks

# Share of the mean variance that is added to W.
SHRINKAGE = 0.05
# Directions in which the classes differ by less than this, in units of W, say nothing.
LEAST_BETWEEN = 0.02
# Share of samples that are of no class, as far as nothing else is known.
UNNAMED = 0.002
# ν, of the tails of a class: chosen on validation letters.
FREEDOM = 8.0


@dataclass(frozen=True)
class Moments:
    """What a model is fitted by: weighted sums over rows."""

    counts: Tensor  # Sums of weights, float64, (C,)
    sums: Tensor  # float64, (C, F)
    total: Tensor  # Σ w x xᵀ, float64, (F, F)

    @classmethod
    def of(cls, X: Tensor, classes: Tensor, weights: Tensor, num_classes: int) -> "Moments":
        """Sum over rows (N, F) that count for classes (N, K)."""
        width = X.shape[1]
        # In float64: W is a small difference of large sums.
        counts = torch.zeros(num_classes, dtype=torch.float64)
        counts.index_add_(0, classes.reshape(-1), weights.reshape(-1).double())
        sums = torch.zeros(num_classes, width, dtype=torch.float64)
        total = torch.zeros(width, width, dtype=torch.float64)
        for block in blocks(len(X), 65_536):
            rows = X[block].double()
            for place in range(classes.shape[1]):
                sums.index_add_(0, classes[block, place], rows * weights[block, place, None])
            total += (rows * weights[block].sum(1, keepdim=True)).T @ rows
        return cls(counts, sums, total)

    def without(self, other: "Moments") -> "Moments":
        """Leave out some of the rows."""
        return Moments((self.counts - other.counts).clamp(min=0), self.sums - other.sums, self.total - other.total)


@dataclass(frozen=True)
class ClassModel:
    """Classes in the coordinates of the discriminant analysis."""

    transform: Tensor  # float32, (F, D), of rows minus `origin`
    origin: Tensor  # float32, (F,), the mean of the class means
    between: Tensor  # ψ, float32, (D,)
    counts: Tensor  # n, float32, (C,): sums of weights
    sums: Tensor  # s, float32, (C, D)

    @classmethod
    def fit(cls, whole: Moments, held_out: Moments | None = None) -> "ClassModel":
        """Fit the classes, and W and B without the rows that are held out."""
        seen = whole if held_out is None else whole.without(held_out)
        counts = seen.counts
        means = seen.sums / counts.clamp(min=1e-6)[:, None]
        means[counts < 1e-6] = 0
        within = seen.total - (means * counts[:, None]).T @ means
        within /= (counts.sum() - (counts > 0.5).sum()).clamp(min=1)
        within = (1 - SHRINKAGE) * within
        # Copies of one sample have no spread of their own.
        least = 1e-5 * seen.total.diagonal().mean() / counts.sum() + 1e-12
        within.diagonal().add_((SHRINKAGE * within.diagonal().mean()).clamp(min=least))
        # Means of few samples are far apart by chance: larger classes count more, and that chance is taken off.
        share = (counts - 1).clamp(min=0) + 1e-12
        share /= share.sum()
        origin = share @ means
        centred = means - origin
        between = (centred * share[:, None]).T @ centred
        between -= within * (share / counts.clamp(min=1e-6)).sum()
        transform, spread = _discriminants(within, between)
        shifted = (whole.sums - whole.counts[:, None] * origin) @ transform
        return cls(transform.float(), origin.float(), spread.float(), whole.counts.float(), shifted.float())

    def coordinates(self, X: Tensor) -> Tensor:
        """Rows in the coordinates of the model."""
        return (X - self.origin) @ self.transform

    def log_densities(self, of: Tensor | slice = slice(None)) -> Callable[[Tensor], Tensor]:
        """Return a function that gives log-densities of rows (B, D) under all classes or some, (B, C)."""
        mean, variance = self._posterior(self.counts[of, None], self.sums[of])
        constant = -0.5 * (variance.log() + mean.square() / variance).sum(1)
        quadratic, linear = (-0.5 / variance).T.contiguous(), (mean / variance).T.contiguous()
        return lambda Z: torch.addmm(constant, Z, linear).addmm_(Z.square(), quadratic)

    def without_own(self, Z: Tensor, classes: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Log-densities and squared distances of some classes, each row left out as far as it counts for them."""
        densities, distances = [], []
        for place in range(classes.shape[1]):
            labels, counted = classes[:, place], own[:, place, None]
            left = (self.counts[labels, None] - counted).clamp(min=0)
            mean, variance = self._posterior(left, self.sums[labels] - counted * Z)
            distance = ((Z - mean).square() / variance).sum(1)
            distances.append(distance)
            densities.append(-0.5 * (variance.log().sum(1) + distance))
        return torch.stack(densities, 1), torch.stack(distances, 1)

    def no_class(self, Z: Tensor, density: Tensor, distance: Tensor, prior: Tensor, sharpness: float) -> Tensor:
        """Log-probability that a row (B, D) is of no class, relative to the likeliest of some classes (B, K)."""
        variance = 1 + self.between  # of a class that nobody has named
        unnamed = (Z.square() / variance).sum(1)
        none = _heavy_tailed(-0.5 * (variance.log().sum() + unnamed), unnamed, sharpness, Z.shape[1])
        return none + math.log(UNNAMED) - (_heavy_tailed(density, distance, sharpness, Z.shape[1]) + prior).amax(1)

    def _posterior(self, counts: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of a further sample of classes (n, 1) with these sums (n, D)."""
        precision = counts + 1 / self.between
        return sums / precision, 1 + 1 / precision


def _discriminants(within: Tensor, between: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates in which W is the identity and B diagonal, the strongest last; and that diagonal."""
    lower = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(lower, between, upper=False)
    whitened = torch.linalg.solve_triangular(lower, half.T, upper=False)
    spread, turn = torch.linalg.eigh((whitened + whitened.T) / 2)
    kept = spread > LEAST_BETWEEN
    kept[-1] = True
    transform = torch.linalg.solve_triangular(lower.T, turn[:, kept], upper=True)
    return transform, spread[kept].clamp(min=LEAST_BETWEEN)


def _heavy_tailed(density: Tensor, distance: Tensor, sharpness: float, width: int) -> Tensor:
    """Log-density of Student's t at a squared distance, where the normal one of D dimensions is `density`."""
    peak = density + distance / 2
    return sharpness * peak - (FREEDOM + sharpness * width) / 2 * torch.log1p(sharpness / FREEDOM * distance)


def independent_share(distances: Tensor, width: int) -> float:
    """Share of D dimensions that are independent, by squared distances of samples from their nearest class, (n,)."""
    # By quantiles: samples of no class are far away.
    low, high = distances.clamp(min=1e-12).log().quantile(torch.tensor([0.16, 0.84])).tolist()
    return float(2 / max((high - low) / 2, 1e-3) ** 2 / width)
