"""Retrieval metrics by the cosine: streamed, so that neither all similarities nor all neighbours are ever in memory."""

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Array, Doubles, Ints, Labels
from robustdml.errors import UsageError
from robustdml.progress import OnProgress, silent
from robustdml_ops.ops import nearest

# What `retrieval_metrics` gives, and what people call it.
METRICS = {
    "precision_at_1": "Recall@1",
    "recall_at_2": "Recall@2",
    "recall_at_4": "Recall@4",
    "recall_at_8": "Recall@8",
    "r_precision": "R-precision",
    "mean_average_precision_at_r": "MAP@R",
}
RECALLS = (1, 2, 4, 8)
# Neighbours at a time (some 60 bytes each), and queries at a time.
_MOST_FOUND, _MOST_QUERIES = 2**23, 2**17
DRAWS, INTERVAL = 1000, (2.5, 97.5)

Vectors: TypeAlias = Array | Tensor  # Embeddings or features, (N, D)


def check_retrieval(labels: Labels) -> None:
    """Refuse labels that are all different."""
    if int(np.bincount(labels).max(initial=0)) < 2:
        raise UsageError("retrieval needs a test class with at least 2 samples")


def retrieval_metrics(embeddings: Vectors, labels: Labels, device: torch.device | None = None) -> dict[str, float]:
    """Compute `METRICS` of (N, D) embeddings by cosine, over the samples that are not alone in their class."""
    check_retrieval(labels)
    found = retrieval_by_query(embeddings, labels, device=device)
    return dict(zip(METRICS, np.nanmean(found, axis=0).tolist(), strict=True))


def retrieval_by_query(
    queries: Vectors,
    labels: Labels,
    gallery: tuple[Vectors, Labels] | None = None,
    device: torch.device | None = None,
    on_progress: OnProgress = silent,
    among: Ints | None = None,
) -> Doubles:
    """Compute `METRICS` of each query, (N, 6), in a gallery of embeddings and labels; NaN where it has none of a class.

    Without a gallery each query, or each of those numbered `among` them, searches all other queries.
    """
    rows, sought = _tensor(queries, device), torch.from_numpy(labels).to(device)
    searched, there = (rows, sought) if gallery is None else (_tensor(gallery[0], device), _tensor(gallery[1], device))
    own = int(gallery is None)
    for one in (rows, searched):
        if not all(bool(part.isfinite().all()) for part in torch.split(one, _MOST_QUERIES)):
            raise UsageError("embeddings are NaN or infinite: the training diverged; try a smaller learning rate")
    relevant = torch.bincount(there, minlength=int(sought.max()) + 1 if len(sought) else 0)[sought] - own
    # Queries that look for many come first, and with others that do.
    order = torch.argsort(relevant, descending=True, stable=True)
    order = order[: int((relevant > 0).sum())]
    if among is not None:
        order = order[torch.isin(order, torch.from_numpy(among).to(order.device))]
    result = torch.full((len(rows), len(METRICS)), torch.nan, dtype=torch.float64)
    start = 0
    while start < len(order):
        on_progress("searching", start, len(order))
        k = min(max(int(relevant[order[start]]), RECALLS[-1]), len(searched) - own)
        some = order[start : start + min(max(_MOST_FOUND // k, 1), _MOST_QUERIES)]
        found = nearest(rows[some], searched, k + own).indices
        if own:
            found = _without_own(found, some)
        result[some.cpu()] = _metrics(there[found] == sought[some, None], relevant[some, None]).cpu()
        start += len(some)
    return result.numpy()


def _without_own(found: Tensor, own: Tensor) -> Tensor:
    """Leave each query itself out, or the last where it is not among those found."""
    passed = (found == own[:, None]).cumsum(1)[:, :-1] > 0
    return torch.where(passed, found[:, 1:], found[:, :-1])


def _metrics(right: Tensor, relevant: Tensor) -> Tensor:
    """`METRICS` of queries, (n, 6), by whether each neighbour is right, (n, k), and how many are, (n, 1)."""
    ranks = torch.arange(1, right.shape[1] + 1, device=right.device)
    counted = right & (ranks <= relevant)
    precisions = (right.cumsum(1) / ranks.double()).masked_fill_(~counted, 0)
    recalls = [right[:, :k].any(1, keepdim=True) for k in RECALLS]
    return torch.cat([*recalls, counted.sum(1, keepdim=True) / relevant, precisions.sum(1, keepdim=True) / relevant], 1)


def intervals_over_classes(values: Doubles, labels: Labels) -> list[tuple[float, float]]:
    """95 % intervals of the means of columns (N, K): a bootstrap over the classes of the samples; NaN is no sample."""
    rows = ~np.isnan(values).any(axis=1)
    classes, numbers = np.unique(labels[rows], return_inverse=True)
    sums = np.stack([np.bincount(numbers, column).astype(np.float64) for column in values[rows].T])
    return intervals_of_ratios(sums, np.bincount(numbers).astype(np.float64)) if len(classes) else []


def intervals_of_ratios(sums: Doubles, counts: Doubles) -> list[tuple[float, float]]:
    """95 % intervals of Σ sums / Σ counts, where classes are drawn anew: sums (K, C), counts (C,)."""
    random, size = np.random.default_rng(0), len(counts)
    drawn = (np.bincount(random.integers(0, size, size), minlength=size) for _ in range(DRAWS))
    ratios = np.array([sums @ times / max(float(counts @ times), 1.0) for times in drawn])
    return [(float(low), float(high)) for low, high in np.percentile(ratios, INTERVAL, axis=0).T]


def _tensor(array: Vectors, device: torch.device | None) -> Tensor:
    if isinstance(array, Tensor):
        return array.to(device)
    # PyTorch warns of a tensor over an array that is mapped for reading alone.
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)
