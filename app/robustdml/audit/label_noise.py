"""Which labels each class gets: its wrong ones go to certain classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Samples that the mean over all classes counts for, in a class's share of wrong labels and in what it is taken for.
PRIOR_RATE = 5.0
PRIOR_PAIRS = 2.0
_TINY = 1e-12


@dataclass(frozen=True)
class LabelNoise:
    """P(label | class) of G noises, of n samples with K classes each; of class C, which has no name, all are wrong."""

    rate: Tensor  # Share of wrong labels in all, (G, 1)
    popularity: Tensor  # Where wrong labels go, (G, C), rows of sum 1
    seen: Tensor  # Expected number of samples of each sample's classes that have its label, (G, n, K)
    wrong: Tensor  # Expected number of wrong labels and of samples of each class, (G, C + 1)
    total: Tensor

    @classmethod
    def unknown(cls, num_noises: int, num_classes: int, rate: float) -> "LabelNoise":
        """Nothing is known: wrong labels may be any."""
        popularity = torch.full((num_noises, num_classes), 1 / num_classes)
        none = torch.zeros(num_noises, num_classes + 1)
        return cls(torch.full((num_noises, 1), rate), popularity, torch.zeros(num_noises, 1, 1), none, none)

    @classmethod
    def count(
        cls, labels: Tensor, classes: Tensor, pairs: Tensor, posterior: Tensor, num_classes: int, rate: Tensor
    ) -> "LabelNoise":
        """Count what is expected to have been mistaken for what."""
        # labels (n,); classes (n, K); pairs (n, K), a number for each pair of class and label; posterior (G, n, K)
        wrong_part = posterior.clone()
        wrong_part[:, :, 0] = 0
        seen = _summed(wrong_part * (wrong_part > 1e-3), pairs, pairs.numel())[:, pairs]
        wrong, total = (_summed(part, classes, num_classes + 1) for part in (wrong_part, posterior))
        popularity = _summed(1 - posterior[:, :, 0], labels, num_classes, 1.0)
        return cls(rate, popularity / popularity.sum(1, keepdim=True), seen, wrong, total)

    def right(self, classes: Tensor) -> Tensor:
        """Share of each class's samples with its own name."""
        rates = (self.wrong + PRIOR_RATE * self.rate) / (self.total + PRIOR_RATE)
        return (1 - rates)[:, classes]

    def log_probability(self, labels: Tensor, classes: Tensor, own: Tensor) -> Tensor:
        """Log-probability of each sample's label under several classes, the sample itself left out, (G, n, K)."""
        popular, rate = self.popularity[:, labels, None], self.rate[:, :, None]
        wrong, total = (counts[:, classes] for counts in (self.wrong, self.total))
        seen = (self.seen - own).clamp(min=0)
        others = (wrong - own).clamp(min=0)
        taken_for = (seen + PRIOR_PAIRS * popular) / (others + PRIOR_PAIRS)
        rates = (others + PRIOR_RATE * rate) / ((total - own).clamp(min=0) + PRIOR_RATE)
        log_probability = (rates * taken_for).clamp(min=_TINY).log()
        right = (wrong[:, :, 0] + PRIOR_RATE * self.rate) / (total[:, :, 0] + PRIOR_RATE)
        log_probability[:, :, 0] = (1 - right).clamp(min=_TINY).log()
        log_probability[:, :, -1] = popular[:, :, 0].log()
        return log_probability


def _summed(values: Tensor, places: Tensor, number: int, start: float = 0.0) -> Tensor:
    """Sums (G, number) of values (G, …) at places (…)."""
    # One flat index: along a second dimension PyTorch adds row by row.
    offsets = torch.arange(len(values))[:, None] * number
    flat = torch.full((len(values) * number,), start)
    return flat.index_add_(0, (offsets + places.flatten()).flatten(), values.flatten()).view(-1, number)


def anchored(labels: Tensor, classes: Tensor, posterior: Tensor, num_classes: int) -> Tensor:
    """Weights (N, K) by which samples count for classes: of no other label may a class have more than of its own."""
    _, pairs = torch.unique(classes * num_classes + labels[:, None], return_inverse=True)
    noise = LabelNoise.count(labels, classes, pairs, posterior[None], num_classes, torch.zeros(1, 1))
    right = (noise.total - noise.wrong)[0, classes[:, 1:-1]]
    out = posterior.clone()
    out[:, 1:-1] *= (right / noise.seen[0, :, 1:-1].clamp(min=_TINY)).clamp(max=1)
    return out
