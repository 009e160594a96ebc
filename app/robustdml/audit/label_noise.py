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
    """P(label | class); class C has no name, and all of its labels are wrong."""

    rate: float  # Share of wrong labels in all
    popularity: Tensor  # Where wrong labels go, (C,), with sum 1
    pairs: Tensor  # Keys class·C + label of the pairs that were seen, int64, ascending, (P,)
    pair_counts: Tensor  # Expected number of samples of each, (P,)
    wrong: Tensor  # Expected number of wrong labels and of samples of each class, (C + 1,)
    total: Tensor

    @classmethod
    def unknown(cls, num_classes: int, rate: float) -> "LabelNoise":
        """Nothing is known: wrong labels may be any."""
        empty, none = torch.zeros(0), torch.zeros(num_classes + 1)
        popularity = torch.full((num_classes,), 1 / num_classes)
        return cls(rate, popularity, torch.zeros(0, dtype=torch.int64), empty, none, none)

    @classmethod
    def count(cls, labels: Tensor, classes: Tensor, posterior: Tensor, num_classes: int, rate: float) -> "LabelNoise":
        """Count what is expected to have been mistaken for what."""
        wrong_part = posterior.clone()
        wrong_part[:, 0] = 0
        likely = wrong_part > 1e-3
        keys, place = torch.unique((classes * num_classes + labels[:, None])[likely], return_inverse=True)
        pair_counts = torch.zeros(len(keys)).index_add_(0, place, wrong_part[likely])
        wrong, total = (
            torch.zeros(num_classes + 1).index_add_(0, classes.reshape(-1), part.reshape(-1))
            for part in (wrong_part, posterior)
        )
        popularity = torch.ones(num_classes).index_add_(0, labels, 1 - posterior[:, 0])
        return cls(rate, popularity / popularity.sum(), keys, pair_counts, wrong, total)

    def seen(self, classes: Tensor, labels: Tensor) -> Tensor:
        """Expected number of samples of these classes with these labels."""
        keys = classes * len(self.popularity) + labels
        if not len(self.pairs):
            return torch.zeros(keys.shape)
        place = torch.searchsorted(self.pairs, keys).clamp(max=len(self.pairs) - 1)
        return self.pair_counts[place] * (self.pairs[place] == keys)

    def right(self, classes: Tensor) -> Tensor:
        """Share of each class's samples with its own name."""
        rates = (self.wrong + PRIOR_RATE * self.rate) / (self.total + PRIOR_RATE)
        return (1 - rates)[classes]

    def log_probability(self, labels: Tensor, classes: Tensor, own: Tensor) -> Tensor:
        """Log-probability of each sample's label under several classes, the sample itself left out."""
        popular = self.popularity[labels][:, None]
        wrong, total = (counts[classes] for counts in (self.wrong, self.total))
        seen = (self.seen(classes, labels[:, None]) - own).clamp(min=0)
        taken_for = (seen + PRIOR_PAIRS * popular) / ((wrong - own).clamp(min=0) + PRIOR_PAIRS)
        rates = ((wrong - own).clamp(min=0) + PRIOR_RATE * self.rate) / ((total - own).clamp(min=0) + PRIOR_RATE)
        log_probability = (rates * taken_for).clamp(min=_TINY).log()
        right = (wrong[:, 0] + PRIOR_RATE * self.rate) / (total[:, 0] + PRIOR_RATE)
        log_probability[:, 0] = (1 - right).clamp(min=_TINY).log()
        log_probability[:, -1] = popular[:, 0].log()
        return log_probability


def anchored(labels: Tensor, classes: Tensor, posterior: Tensor, num_classes: int) -> Tensor:
    """Weights (N, K) by which samples count for classes: of no other label may a class have more than of its own."""
    seen = LabelNoise.count(labels, classes, posterior, num_classes, 0.0)
    right = seen.total - seen.wrong
    out = posterior.clone()
    for place in range(1, classes.shape[1] - 1):
        other = classes[:, place]
        out[:, place] *= (right[other] / seen.seen(other, labels).clamp(min=_TINY)).clamp(max=1)
    return out
