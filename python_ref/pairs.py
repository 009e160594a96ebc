"""Who is whose positive and negative, where samples are compared with samples and not with proxies."""

import torch
from torch import Tensor


def pair_sets(labels: Tensor, vector_labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Positives and negatives of every sample.

    Parameters
    ----------
    labels : Tensor, (B,)
        Classes of the samples. A label below 0 marks a row that takes no part, here as among the vectors.
    vector_labels : Tensor, (m,), optional
        Classes of the vectors that the samples are compared with. None: the samples themselves, each without itself.

    Returns
    -------
    positive, negative : Tensor, (B, m), bool

    Examples
    --------
    >>> pair_sets(torch.tensor([0, 0, 1, -1]))[0].int()
    tensor([[0, 1, 0, 0],
            [1, 0, 0, 0],
            [0, 0, 0, 0],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    others = labels if vector_labels is None else vector_labels
    pairs = (labels[:, None] >= 0) & (others >= 0)
    if vector_labels is None:
        pairs &= ~torch.eye(len(labels), dtype=torch.bool)
    same = labels[:, None] == others
    return same & pairs, ~same & pairs


def without_absent(labels: Tensor, sample_weights: Tensor | None) -> Tensor:
    """Labels in which −1 stands for each sample of weight 0: it is absent, as anchor and as candidate."""
    return labels if sample_weights is None else torch.where(sample_weights > 0, labels, -1)


def reduce_samples(losses: Tensor, sample_weights: Tensor | None, reduction: str) -> Tensor:
    """Weighted losses, (B,), as they are or averaged over the samples whose weight is not 0.

    Parameters
    ----------
    losses : Tensor, (B,)
    sample_weights : Tensor, (B,), optional
        Multiply the losses.
    reduction : {"mean", "none"}

    Examples
    --------
    >>> reduce_samples(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([2.0, 0.0, 1.0]), "mean")
    tensor(2.5000)
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f'reduction must be "mean" or "none", got {reduction!r}')
    if sample_weights is not None:
        losses = losses * sample_weights
    return losses if reduction == "none" else losses.sum() / count_kept(losses, sample_weights)


def count_kept(losses: Tensor, sample_weights: Tensor | None) -> int:
    """Samples whose weight is not 0, but at least 1, so that a mean over none of them is 0 / 1."""
    return max(1, len(losses) if sample_weights is None else int((sample_weights > 0).sum()))
