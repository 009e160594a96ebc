"""Roig, Varas, Masuda, Riveiro, Bou-Balust: Smooth Proxy-Anchor Loss for Noisy Metric Learning (2020)."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .anchor import (
    cosine_similarity,
    count_nonempty,
    log_one_plus_sum_exp,
    log_sample_weights,
    reduce_proxies,
    without_similar,
)


def confidence_head(
    features: Tensor, hidden_weight: Tensor, hidden_bias: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """Confidence module, Sections 3.4 and 4.2.1: Linear, ReLU, Linear, sigmoid.

    Parameters
    ----------
    features : Tensor, (B, F)
        Output of the frozen backbone.
    hidden_weight, hidden_bias : Tensor, (K, F) and (K,)
        First layer.
    weight, bias : Tensor, (C, K) and (C,)
        Classification layer.

    Returns
    -------
    Tensor, (B, C)
        c_{x,p} in [0, 1]: confidence that sample x belongs to the class of proxy p. Classes do not compete.

    Examples
    --------
    >>> zero, one = torch.zeros(1), torch.ones(1, 1)
    >>> confidence_head(torch.tensor([[-3.0], [0.0], [2.0]]), one, zero, one, zero)
    tensor([[0.5000],
            [0.5000],
            [0.8808]])
    """
    hidden = torch.relu(features @ hidden_weight.T + hidden_bias)
    return torch.sigmoid(hidden @ weight.T + bias)


def smooth_weights(confidences: Tensor, beta: float = 100.0, threshold: float = 0.1) -> Tensor:
    """Weights of samples for proxies, Eq. 7: w = 1 / (1 + e^{-β(c - λ)}).

    Parameters
    ----------
    confidences : Tensor, any shape
        Confidences c.
    beta : float
        β, the sharpness.
    threshold : float
        Threshold λ of the confidences.

    Returns
    -------
    Tensor, the shape of the confidences

    Examples
    --------
    >>> smooth_weights(torch.tensor([0.0, 0.1, 1.0]), beta=10.0)
    tensor([0.2689, 0.5000, 0.9999])
    """
    return torch.sigmoid(beta * (confidences - threshold))


def smooth_proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    confidences: Tensor,
    alpha: float = 32.0,
    margin: float = 0.1,
    beta: float = 100.0,
    threshold: float = 0.1,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
    drop_similar_negatives: float | Tensor | None = None,
) -> Tensor:
    """Smooth Proxy-Anchor loss, Eq. 5 with the weights of Eq. 7.

    ::

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺}      w_{x,p}  e^{-α(s(x,p) - δ)})
          + 1/|P⁻| Σ_{p∈P⁻} log(1 + Σ_{x∈X_p⁻} (1 - w_{x,p}) e^{ α(s(x,p) + δ)})

    X_p⁺ holds the samples with c_{x,p} > λ, X_p⁻ the others; P⁺ and P⁻ hold the proxies for which these are not empty.
    Labels take no part: a sample may be a positive of several proxies, or of none.

    Parameters
    ----------
    embeddings : Tensor, (B, D)
        X, normalised here.
    proxies : Tensor, (C, D)
        P, normalised here.
    confidences : Tensor, (B, C)
        c, in [0, 1]. Constants: the confidence module is frozen in this phase and receives no gradient.
    alpha, margin : float
        α and δ of Proxy-Anchor.
    beta, threshold : float
        β and λ of Eq. 7.
    sample_weights : Tensor, (B,), optional
        Multiply the exponentials in both sums, beside w. Weight 0: the sample is absent.
    reduction : {"mean", "none"}
        "none" gives a vector over the proxies, (C,), whose sum is the loss.
    drop_similar_negatives : float, optional
        Limit of the negatives' cosines, see :func:`python_ref.anchor.without_similar`. The divisors stay.

    Returns
    -------
    Tensor, () or (C,)
        An empty batch gives 0, connected to the graph.

    Raises
    ------
    ValueError
        A negative sample weight or an unknown reduction.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> smooth_proxy_anchor_loss(x, x, torch.eye(2), alpha=1.0, margin=0.0, beta=1000.0)
    tensor(1.0064)
    """
    present, log_v = log_sample_weights(sample_weights, embeddings)
    confidences = confidences.detach().T  # (C, B), as the similarities
    log_w, log_one_minus_w = _log_smooth_weights(confidences, beta, threshold)
    # Erratum: Eq. 4 prints the sums over "p in X_p⁺"; the sums run over samples x.
    confident = confidences > threshold
    positive = confident & present  # (C, B): x in X_p⁺
    negative = ~confident & present  # (C, B): x in X_p⁻

    S = cosine_similarity(proxies, embeddings)  # (C, B)
    positive_terms = log_one_plus_sum_exp(log_v + log_w - alpha * (S - margin), positive)
    remaining = without_similar(negative, S, drop_similar_negatives)
    negative_terms = log_one_plus_sum_exp(log_v + log_one_minus_w + alpha * (S + margin), remaining)
    # Erratum: |P⁻| is not defined in the paper, and Proxy-Anchor divides by |P|. Here P⁻ mirrors P⁺: proxies with a
    # non-empty X_p⁻, which is all of them unless every sample of the batch is a positive of one proxy.
    # Erratum: nothing keeps P⁺ (or P⁻) from being empty. Its term is then 0 / 1 and stays connected to the graph.
    per_proxy = positive_terms / count_nonempty(positive) + negative_terms / count_nonempty(negative)
    return reduce_proxies(per_proxy, reduction)


def smooth_similarity_gradient(
    similarity: Tensor,
    confidences: Tensor,
    alpha: float = 32.0,
    margin: float = 0.1,
    beta: float = 100.0,
    threshold: float = 0.1,
) -> Tensor:
    """Gradient of the loss with respect to the similarities, Eq. 6, corrected.

    ::

        ∂L/∂s(x,p) = -α/|P⁺|      w_{x,p}  h⁺ / (1 + Σ_{x'∈X_p⁺}      w_{x',p}  h⁺(x')),   x in X_p⁺
        ∂L/∂s(x,p) =  α/|P⁻| (1 - w_{x,p}) h⁻ / (1 + Σ_{x'∈X_p⁻} (1 - w_{x',p}) h⁻(x')),   x in X_p⁻

    with h⁺ = e^{-α(s - δ)} and h⁻ = e^{α(s + δ)}.

    Parameters
    ----------
    similarity : Tensor, (C, B)
        Cosines, rows are proxies.
    confidences : Tensor, (B, C)
        c, in [0, 1].
    alpha, margin, beta, threshold : float
        As in the loss.

    Returns
    -------
    Tensor, (C, B)

    Examples
    --------
    >>> smooth_similarity_gradient(torch.zeros(1, 2), torch.tensor([[1.0], [0.0]]), 3.0, 0.0, 1000.0, 0.5)
    tensor([[-1.5000,  1.5000]])
    """
    confidences = confidences.T
    positive = confidences > threshold
    log_w, log_one_minus_w = _log_smooth_weights(confidences, beta, threshold)
    log_wh_positive = log_w - alpha * (similarity - margin)
    log_wh_negative = log_one_minus_w + alpha * (similarity + margin)
    # Erratum: the paper prints denominators 1 + Σ h without the weights; differentiating Eq. 5 leaves them in.
    positive_shares = torch.exp(log_wh_positive - log_one_plus_sum_exp(log_wh_positive, positive)[:, None])
    negative_shares = torch.exp(log_wh_negative - log_one_plus_sum_exp(log_wh_negative, ~positive)[:, None])
    return torch.where(
        positive,
        -alpha * positive_shares / count_nonempty(positive),
        alpha * negative_shares / count_nonempty(~positive),
    )


def _log_smooth_weights(confidences: Tensor, beta: float, threshold: float) -> tuple[Tensor, Tensor]:
    # log w and log(1 - w) without the cancellation in 1 - w. logsigmoid is exact everywhere, where softplus turns
    # linear at 20. Each is used only on its own side of the threshold, so neither falls under log 1/2.
    z = beta * (confidences - threshold)
    return logsigmoid(z), logsigmoid(-z)
