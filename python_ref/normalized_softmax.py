"""Zhai, Wu: Classification is a Strong Baseline for Deep Metric Learning (BMVC 2019)."""

import torch
from torch import Tensor

from .anchor import cosine_similarity
from .reduction import mean_over_samples


def normalized_softmax_loss(
    embeddings: Tensor,
    labels: Tensor,
    weights: Tensor,
    temperature: float = 0.05,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of cosines over a temperature, Zhai and Wu.

    ::

        ℓ_i = −log( e^{cos(x_i, w_y)/T} / Σ_k e^{cos(x_i, w_k)/T} )

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,)
        Embeddings are normalised here.
    weights : Tensor, (C, D)
        w, normalised here.
    temperature : float
        Temperature T.
    sample_weights, reduction
        As in :func:`python_ref.reduction.mean_over_samples`.

    Returns
    -------
    Tensor, () or (B,)

    Examples
    --------
    >>> X = torch.eye(2)
    >>> normalized_softmax_loss(X, torch.tensor([0, 1]), X, temperature=1.0)  # log(1 + e⁻¹)
    tensor(0.3133)
    """
    logits = cosine_similarity(embeddings, weights) / temperature
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    return mean_over_samples(losses, sample_weights, reduction)
