"""Zhai, Wu: Classification is a Strong Baseline for Deep Metric Learning (BMVC 2019), and the mean over samples."""

import torch
from torch import Tensor

from python_ref.anchor import cosine_similarity


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
        T.
    sample_weights, reduction
        As in :func:`mean_over_samples`.

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


def mean_over_samples(losses: Tensor, sample_weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Σ_i u_i ℓ_i over the number of samples with u_i ≠ 0, or all u_i ℓ_i ("none").

    Parameters
    ----------
    losses : Tensor, (B,)
        ℓ.
    sample_weights : Tensor, (B,), optional
        u, not negative; None means 1 for every sample. 0: the sample is absent.
    reduction : {"mean", "none"}

    Returns
    -------
    Tensor, () or (B,)
        Without samples the mean is 0, connected to the graph.

    Examples
    --------
    >>> mean_over_samples(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.5, 0.0]))
    tensor(1.)
    """
    weights = torch.ones_like(losses) if sample_weights is None else sample_weights.to(losses.dtype)
    if reduction == "none":
        return weights * losses
    return (weights * losses).sum() / max(int((weights != 0).sum()), 1)
