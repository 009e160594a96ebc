"""Positive and negative pairs of samples."""

import torch
from torch import Tensor

# The label of a row that is in no pair; any other int64 is a class.
ABSENT: int = torch.iinfo(torch.int64).min


def pair_sets(labels: Tensor, vector_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Positives and negatives of every sample.

    Parameters
    ----------
    labels : Tensor, (B,)
        Classes of the samples. ``ABSENT`` marks a row that is in no pair, here and among the vectors.
    vector_labels : Tensor, (m,), optional
        Classes of the candidates. None: the samples themselves, each without itself. The tensor ``labels`` itself:
        vector i is another embedding of sample i, and not in its sets either.

    Returns
    -------
    positive, negative : Tensor, (B, m), bool

    Examples
    --------
    >>> pair_sets(torch.tensor([0, 0, 1, ABSENT]))[0].int()
    tensor([[0, 1, 0, 0],
            [1, 0, 0, 0],
            [0, 0, 0, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    others = labels if vector_labels is None else vector_labels
    pairs = (labels[:, None] != ABSENT) & (others != ABSENT)
    if others is labels:
        pairs &= ~torch.eye(len(labels), dtype=torch.bool)
    same = labels[:, None] == others
    return same & pairs, ~same & pairs


def without_absent(labels: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Labels, with ``ABSENT`` for samples of weight 0."""
    return labels if sample_weights is None else torch.where(sample_weights > 0, labels, ABSENT)


def batch_pairs(
    embeddings: Tensor,
    labels: Tensor,
    vectors: Tensor | None,
    vector_labels: Tensor | None,
    sample_weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Candidates (m, D), and :func:`pair_sets` of a batch in which samples of weight 0 are absent."""
    present = without_absent(labels, sample_weights)
    sets = pair_sets(present, present if vector_labels is labels else vector_labels)
    return embeddings if vectors is None else vectors, *sets
