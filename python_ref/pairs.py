"""Positive and negative pairs of samples."""

import torch
from torch import Tensor

# The label of a row that is in no pair; any other int64 is a class.
ABSENT: int = torch.iinfo(torch.int64).min


def pair_sets(
    labels: Tensor,
    vector_labels: Tensor | None = None,
    sample_ids: Tensor | None = None,
    vector_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Positives and negatives of every sample.

    Parameters
    ----------
    labels : Tensor, (B,) or (B, K)
        Classes of the samples; of several, one in common makes a positive pair. ``ABSENT`` is none: a row of it alone
        is in no pair, here and among the vectors.
    vector_labels : Tensor, (m,) or (m, K), optional
        Classes of the candidates. None: the samples themselves, each without itself. The tensor ``labels`` itself:
        vector i is another embedding of sample i, and not in its sets either.
    sample_ids, vector_ids : Tensor, (B,) and (m,), optional
        A pair of equal ids is in neither set; negative: no id. Without the latter, the vectors have those of the
        samples.

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
    given, its = (one[:, None] if one.dim() == 1 else one for one in (labels, others))
    pairs = (given != ABSENT).any(1)[:, None] & (its != ABSENT).any(1)
    if others is labels:
        pairs &= ~torch.eye(len(labels), dtype=torch.bool)
    if sample_ids is not None:
        ids = sample_ids if vector_ids is None else vector_ids
        pairs &= (sample_ids[:, None] != ids) | (sample_ids < 0)[:, None]
    equal = (given[:, None, :, None] == its[None, :, None, :]) & (given != ABSENT)[:, None, :, None]
    same = equal.flatten(2).any(2)
    return same & pairs, ~same & pairs


def without_absent(labels: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Labels, with ``ABSENT`` for samples of weight 0."""
    if sample_weights is None:
        return labels
    present = sample_weights > 0
    return torch.where(present if labels.dim() == 1 else present[:, None], labels, ABSENT)


def batch_pairs(
    embeddings: Tensor,
    labels: Tensor,
    vectors: Tensor | None,
    vector_labels: Tensor | None,
    sample_weights: Tensor | None,
    ids: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor, Tensor]:
    """Candidates (m, D), and :func:`pair_sets` of a batch in which samples of weight 0 are absent."""
    present = without_absent(labels, sample_weights)
    sets = pair_sets(present, present if vector_labels is labels else vector_labels, *ids)
    return embeddings if vectors is None else vectors, *sets
