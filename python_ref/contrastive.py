"""Contrastive loss, as pytorch-metric-learning states it.

The contrastive loss with a memory bank is in ``python_ref.prism_losses``.
"""

import torch
from torch import Tensor

from .anchor import cosine_similarity, unit_distance
from .pairs import batch_pairs
from .reduction import count_present, mean_over_samples


def contrastive_loss(
    embeddings: Tensor,
    labels: Tensor,
    vectors: Tensor | None = None,
    vector_labels: Tensor | None = None,
    pos_margin: float = 0.0,
    neg_margin: float = 1.0,
    distance: str = "euclidean",
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
    ids: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Contrastive loss: hinges of all pairs, averaged over those above 0, positives and negatives apart.

    ::

        L = 1/|A⁺| Σ_{(i,p) positive} [d_ip − m⁺]₊  +  1/|A⁻| Σ_{(i,n) negative} [m⁻ − d_in]₊

    A⁺ and A⁻ are the pairs whose hinge is above 0. With ``distance="cosine"`` similarity takes the place of −d and the
    margins are cosines: [m⁺ − s]₊ and [s − m⁻]₊.

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,) or (B, K)
        Embeddings are normalised here. The label ``ABSENT``: the sample is absent.
    vectors, vector_labels : Tensor, (m, D) and (m,), optional
        The candidates; None: the samples themselves. See :func:`python_ref.pairs.pair_sets`.
    pos_margin, neg_margin : float
        Margins m⁺ and m⁻ of positive and of negative pairs.
    distance : {"euclidean", "cosine"}
        Euclidean distance of unit vectors, √(2 − 2s), or the cosine.
    sample_weights : Tensor, (B,), optional
        Multiply the terms of each anchor. Weight 0: the sample is absent, among the candidates as well.
    reduction : {"mean", "none"}
        "none" gives (B,), a loss per sample whose mean over samples of non-zero weight is L.
    ids : tuple of Tensor, (B,) and (m,)
        Of samples and vectors, see :func:`python_ref.pairs.pair_sets`.

    Returns
    -------
    Tensor, () or (B,)
        An empty batch gives 0, connected to the graph.

    Examples
    --------
    >>> X = torch.eye(3)
    >>> contrastive_loss(X, torch.tensor([0, 0, 1]))  # √2 + 0
    tensor(1.4142)
    >>> contrastive_loss(X, torch.tensor([0, 0, 1]), pos_margin=1.0, neg_margin=-0.5, distance="cosine")
    tensor(1.5000)
    """
    candidates, positive, negative = batch_pairs(embeddings, labels, vectors, vector_labels, sample_weights, ids)
    if distance == "euclidean":
        S = -unit_distance(embeddings, candidates)
        pos_margin, neg_margin = -pos_margin, -neg_margin
    else:
        S = cosine_similarity(embeddings, candidates)
    attraction = torch.where(positive, pos_margin - S, 0).clamp(min=0)
    repulsion = torch.where(negative, S - neg_margin, 0).clamp(min=0)
    present = count_present(labels, sample_weights)
    per_sample = present * sum(terms.sum(1) / (terms > 0).sum().clamp(min=1) for terms in (attraction, repulsion))
    return mean_over_samples(per_sample, sample_weights, reduction)
