"""Log-densities of the classes that a sample may be of.

Few classes are all evaluated. Of many, only those whose means are nearest to the sample in the strongest directions
are; the sum over all others is estimated from classes drawn at random.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from robustdml.audit.class_model import ClassModel
from robustdml.audit.features import lifted
from robustdml_ops.ops import nearest

# Samples × classes up to which all classes are asked about: a minute or less.
MOST_PAIRS = 5 * 10**8
# Beyond, classes that are listed for a sample, the directions that these are found in, and classes drawn.
LISTED, DIRECTIONS, DRAWN = 32, 64, 256
# No −∞, of which a weight of 0 would make NaN.
LOWEST = torch.finfo(torch.float32).min / 4


class AllClasses:
    """Log densities plus log shares of all classes, (n, C)."""

    def __init__(self, density: Tensor) -> None:
        self.density = density

    def densest(self, count: int) -> Tensor:
        """The classes of most density, (n, k)."""
        return self.density.topk(min(count, self.density.shape[1]), 1).indices

    def others(self, near: Tensor, weights: Sequence[float]) -> Tensor:
        """Logarithms of the sums over all classes but those near (n, K), by weight; it is asked once."""
        self.density.scatter_(1, near, LOWEST)
        return torch.stack([(weight * self.density).logsumexp(1) for weight in weights], 1)


class SomeClasses:
    """The same of some classes: those listed for each row (n, L), and drawn ones (R,) that stand for all others."""

    def __init__(self, listed: Tensor, density: Tensor, drawn: Tensor, of_drawn: Tensor, num_classes: int) -> None:
        self.listed, self.density = listed, density
        twice = (listed[:, :, None] == drawn).any(1)
        self.drawn = of_drawn.masked_fill(twice, LOWEST)
        self.times = ((num_classes - listed.shape[1]) / (~twice).sum(1, keepdim=True)).log()

    def densest(self, count: int) -> Tensor:
        """The classes of most density, (n, k)."""
        return self.listed.gather(1, self.density.topk(count, 1).indices)

    def others(self, near: Tensor, weights: Sequence[float]) -> Tensor:
        """Logarithms of the sums over all classes but those near (n, K), by weight."""
        listed = self.density.masked_fill((self.listed[:, :, None] == near[:, None]).any(2), LOWEST)
        both = (torch.cat([weight * listed, weight * self.drawn + self.times], 1) for weight in weights)
        return torch.stack([one.logsumexp(1) for one in both], 1)


def shortlist(X: Tensor, model: ClassModel) -> Tensor | None:
    """Classes whose means are nearest to each row (N, F), (N, L); None where all classes are asked about."""
    num_classes = len(model.counts)
    if len(X) * num_classes <= MOST_PAIRS or num_classes <= LISTED + DRAWN:
        return None
    directions = slice(-DIRECTIONS, None)  # The strongest are the last.
    means = model.sums[:, directions] / (model.counts[:, None] + 1 / model.between[directions])
    rows = (X - model.origin) @ model.transform[:, directions]
    rows, means = lifted(rows, means)
    return nearest(rows, means, LISTED).indices


def candidates(Z: Tensor, model: ClassModel, log_share: Tensor, listed: Tensor | None) -> AllClasses | SomeClasses:
    """Ask about rows (n, D) in the model's coordinates, of which classes (n, L) are listed or all are asked about."""
    if listed is None:
        return AllClasses(model.log_densities()(Z).add_(log_share))
    drawn = torch.randperm(len(log_share), generator=torch.Generator().manual_seed(0))[:DRAWN]
    of_listed = model.without_own(Z, listed, torch.zeros(listed.shape))[0] + log_share[listed]
    of_drawn = model.log_densities(drawn)(Z).add_(log_share[drawn])
    return SomeClasses(listed, of_listed, drawn, of_drawn, len(log_share))
