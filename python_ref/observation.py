"""What a loss sees of each sample: its own class among all, and its hardest pairs."""

import torch
from torch import Tensor


def observed_classes(similarities: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probability of the own class, margin to the nearest other one, and rank of the own one, (B,) each.

    Similarities and logits are (B, C), the latter −∞ for a class that is left out, labels (B, K), −1: none; of several
    the nearest class is the own one.

    >>> S = torch.tensor([[0.9, 0.5, 0.1]])
    >>> observed_classes(S, S / 0.1, torch.tensor([[1]]))
    (tensor([0.0180]), tensor([-0.4000]), tensor([2]))
    """
    probability, margin, rank = [], [], []
    for s, z, row in zip(similarities, logits, labels, strict=True):
        own = [int(k) for k in row if k >= 0]
        if not own:
            probability.append(torch.nan)
            margin.append(torch.nan)
            rank.append(0)
            continue
        best = max(own, key=lambda k: float(s[k]))
        others = [k for k in range(len(s)) if k not in own and z[k] > -torch.inf]
        probability.append(float(torch.softmax(z, 0)[best]))
        margin.append(float(s[best]) - max((float(s[k]) for k in others), default=-torch.inf))
        rank.append(1 + sum(float(s[k]) > float(s[best]) for k in others))
    return logits.new_tensor(probability), logits.new_tensor(margin), torch.tensor(rank)


def hardest_pairs(positive: Tensor, negative: Tensor, similarities: Tensor) -> tuple[Tensor, Tensor]:
    """The lowest similarity with a positive, and the highest with a negative, (B,) each; NaN where there is none.

    >>> positive = torch.tensor([[False, True, False]])
    >>> hardest_pairs(positive, torch.tensor([[False, False, True]]), torch.tensor([[1.0, 0.8, 0.3]]))
    (tensor([0.8000]), tensor([0.3000]))
    """
    lowest = similarities.masked_fill(~positive, torch.inf).amin(1)
    highest = similarities.masked_fill(~negative, -torch.inf).amax(1)
    return lowest.masked_fill(~positive.any(1), torch.nan), highest.masked_fill(~negative.any(1), torch.nan)
