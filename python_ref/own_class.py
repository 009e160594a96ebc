"""Filter by the sample's own class: P_clean from the cosines with it and with those of other samples of a batch."""

import math

import torch
from torch import Tensor


def own_class_p_clean(
    embeddings: Tensor, labels: Tensor, classes: Tensor | None = None, bins: int = 100, deviation: float = 1.5
) -> tuple[Tensor, float]:
    """P_clean (B,) and the share π of wrong labels of one batch, sample by sample and bin by bin.

    Examples
    --------
    >>> X = torch.eye(4).repeat_interleave(3, 0)
    >>> p_clean, share = own_class_p_clean(X, torch.arange(4).repeat_interleave(3))
    >>> p_clean.min() > 0.99, share
    (tensor(True), 0.0)
    """
    X = torch.nn.functional.normalize(embeddings.double(), dim=1)
    B, own, chance = len(X), [0.0] * bins, [0.0] * bins

    def place(i: int, h: int) -> int | None:
        """Bin of the largest cosine of sample i with the class of sample h, but for h itself."""
        if classes is None:
            near = [float(X[i] @ X[j]) for j in range(B) if j != h and labels[j] == labels[h]]
        else:
            near = [float(X[i] @ one / one.norm()) for one in classes[labels[h]].double().reshape(-1, X.shape[1])]
        return min(max(int((max(near) + 1) * bins / 2), 0), bins - 1) if near else None

    places = [place(i, i) for i in range(B)]
    for i in range(B):
        h = (i - B // 2) % B
        if (at := places[i]) is not None:
            own[at] += 1
        if labels[i] != labels[h] and (at := place(i, h)) is not None:
            chance[at] += 1
    own, chance = ([value / max(sum(values), 1e-12) for value in values] for values in (own, chance))
    if not sum(chance):
        return torch.ones(B), 0.0
    median = next(k for k in range(bins) if sum(chance[: k + 1]) >= 0.5)
    share = min(1.0, sum(own[: median + 1]) / sum(chance[: median + 1]))
    weights = [math.exp(-0.5 * (k / deviation) ** 2) for k in range(-4, 5)]

    def smooth(values: list[float], at: int) -> float:
        near = range(max(0, at - 4), min(bins, at + 5))
        return sum(values[k] * weights[k - at + 4] for k in near) / sum(weights)

    p, highest = [], 0.0
    for k in range(bins):
        value = 1 - share * smooth(chance, k) / max(smooth(own, k), 1e-12)
        highest = max(highest, min(max(value, 0.0), 1.0) if k > median else 0.0)
        p.append(highest)
    return torch.tensor([1 - share if at is None else p[at] for at in places]), share
