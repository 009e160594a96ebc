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
