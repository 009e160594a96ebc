"""Losses over a sample of the classes: each drawn class stands for w classes.

The estimate of a sum by its drawn terms: Horvitz and Thompson, "A Generalization of Sampling Without Replacement From a
Finite Universe", 1952. The logarithmic correction of a softmax: Bengio, Senécal, "Adaptive Importance Sampling to
Accelerate Training of a Neural Probabilistic Language Model", 2008; without it: An et al., "Partial FC: Training 10
Million Identities on a Single Machine", 2021.
"""

import torch
from torch import Tensor

from .anchor import cosine_similarity, count_nonempty, log_one_plus_sum_exp, without_similar


def sampled_proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    drawn: Tensor,
    weights: Tensor,
    alpha: float = 32.0,
    margin: float = 0.1,
    drop_similar_negatives: float | Tensor | None = None,
) -> Tensor:
    """Proxy-Anchor over the proxies ``drawn``, each of which counts ``weights`` times in the negative term.

    ::

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺} e^{-α(s(x,p) - δ)})
          + 1/|P|  Σ_{p drawn} w_p log(1 + Σ_{x∈X_p⁻} e^{ α(s(x,p) + δ)})

    Parameters
    ----------
    embeddings, proxies, labels, alpha, margin, drop_similar_negatives
        As in :func:`python_ref.proxy_anchor.proxy_anchor_loss`.
    drawn : Tensor, (M,), int64
        Distinct classes; all of P⁺ are among them.
    weights : Tensor, (M,)
        w. Where it is 1 over the probability that a class is drawn, L has the expectation of the loss over all.

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0]])
    >>> P = torch.eye(2)  # the second proxy stands for two
    >>> sampled_proxy_anchor_loss(x, P, torch.tensor([0]), torch.tensor([0, 1]), torch.tensor([1.0, 2.0]), 1.0, 0.0)
    tensor(1.0064)
    """
    of_class = labels == drawn[:, None]
    S = cosine_similarity(proxies[drawn], embeddings)
    positive_terms = log_one_plus_sum_exp(-alpha * (S - margin), of_class)
    remaining = without_similar(~of_class, S, drop_similar_negatives)
    negative_terms = log_one_plus_sum_exp(alpha * (S + margin), remaining)
    return positive_terms.sum() / count_nonempty(of_class) + (weights * negative_terms).sum() / len(proxies)


def sampled_cross_entropy(logits: Tensor, labels: Tensor, drawn: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy over the classes ``drawn``.

    ::

        ℓ_i = −log( e^{z_iy} / (e^{z_iy} + Σ_{k drawn, k≠y} w_k e^{z_ik}) )

    Parameters
    ----------
    logits, labels : Tensor, (B, C) and (B,)
        z, those of the labels with their margin.
    drawn : Tensor, (M,), int64
        Distinct classes, those of the labels among them.
    weights : Tensor, (M,)
        w; 1 of the classes of the labels. 1 for all is the form of Partial FC.

    Returns
    -------
    Tensor, (B,)

    Examples
    --------
    >>> drawn, w = torch.tensor([0, 2]), torch.tensor([1.0, 2.0])
    >>> sampled_cross_entropy(torch.zeros(1, 3), torch.tensor([0]), drawn, w)  # log 3: class 2 stands for class 1
    tensor([1.0986])
    """
    z = logits[:, drawn] + weights.log()
    own = (labels[:, None] == drawn).int().argmax(1)
    return torch.nn.functional.cross_entropy(z, own, reduction="none")
