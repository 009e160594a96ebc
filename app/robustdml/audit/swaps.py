"""Classes that may have taken each other's place.

Which of two groups of samples a name belongs to is told by the label that most of a group have. Of a group of which
a samples have one label and b another, the majority is chance with the probability Φ(−(a − b) / √(a + b)): one half
where they are as many.
"""

import torch
from torch import Tensor

from robustdml.audit.label_noise import LabelNoise


def doubt_names(labels: Tensor, classes: Tensor, posterior: Tensor, by_features: Tensor, num_classes: int) -> Tensor:
    """Doubt the name of each group: with the probability of chance the likeliest other label is its name."""
    seen = LabelNoise.count(labels, classes, by_features, num_classes, 0.0)
    group, name = seen.pairs // num_classes, seen.pairs % num_classes
    rivals = (group < num_classes) & (seen.pair_counts > 1)
    group, name, others = group[rivals], name[rivals], seen.pair_counts[rivals]
    own = (seen.total - seen.wrong)[group]
    chance = _chance(own, others)
    chances = torch.zeros(num_classes + 1).scatter_reduce_(0, group, chance, "amax")
    likeliest = chance == chances[group]
    rival = torch.full((num_classes + 1,), -1).scatter_reduce_(0, group[likeliest], name[likeliest], "amax")
    out = posterior * (1 - chances[classes])
    for place in range(classes.shape[1]):
        moved = posterior[:, place] * chances[classes[:, place]]
        out += (classes == rival[classes[:, place], None]) * moved[:, None]
    return out


def doubt_wrong_labels(labels: Tensor, classes: Tensor, posterior: Tensor, num_classes: int) -> Tensor:
    """Move to the given label the probability of each other class, times the chance that both share a name."""
    seen = LabelNoise.count(labels, classes, posterior, num_classes, 0.0)
    kept = (seen.total - seen.wrong)[:-1]
    out = posterior.clone()
    for place in range(1, classes.shape[1] - 1):
        other = classes[:, place]
        mistaken = seen.seen(other, labels)
        chance = _chance(kept[other], mistaken) * (mistaken > 1) * (other != labels)
        moved = (posterior[:, place] - posterior[:, 0]) * chance
        out[:, 0] += moved
        out[:, place] -= moved
    return out.clamp(min=0, max=1)


def _chance(own: Tensor, others: Tensor) -> Tensor:
    """Probability that so many of a group have the label of their own by chance, when `others` have another."""
    chance: Tensor = torch.special.ndtr(-(own - others) / (own + others).clamp(min=1e-6).sqrt())
    return chance
