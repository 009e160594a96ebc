"""Kim, Kim, Cho, Kwak: Proxy Anchor Loss for Deep Metric Learning (CVPR 2020)."""

from torch import Tensor

from .anchor import (
    cosine_similarity,
    count_nonempty,
    log_one_plus_sum_exp,
    log_sample_weights,
    reduce_proxies,
    samples_of_classes,
    without_similar,
)


def proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    alpha: float = 32.0,
    margin: float = 0.1,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
    drop_similar_negatives: float | Tensor | None = None,
    label_weights: Tensor | None = None,
) -> Tensor:
    """Proxy-Anchor loss, Eq. 4.

    ::

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺} e^{-α(s(x,p) - δ)})
          + 1/|P|  Σ_{p∈P}  log(1 + Σ_{x∈X_p⁻} e^{ α(s(x,p) + δ)})

    Parameters
    ----------
    embeddings : Tensor, (B, D)
        X, normalised here.
    proxies : Tensor, (C, D)
        P, normalised here.
    labels : Tensor, (B,) or (B, K), int64
        Classes in 0..C-1; of several, negative numbers stand for none. A sample is in X_p⁺ of each.
    alpha : float
        α, the scale.
    margin : float
        Margin δ of the cosines.
    sample_weights : Tensor, (B,), optional
        Multiply the exponentials in both sums. Weight 0: the sample is absent.
    reduction : {"mean", "none"}
        "none" gives a vector over the proxies, (C,), whose sum is the loss.
    drop_similar_negatives : float, optional
        Limit of the negatives' cosines, see :func:`python_ref.anchor.without_similar`. The divisors stay.
    label_weights : Tensor, (B, K), optional
        Multiply the exponentials of the positives. A weight of 0 is as no label.

    Returns
    -------
    Tensor, () or (C,)
        In the dtype of the embeddings. An empty batch gives 0, connected to the graph.

    Raises
    ------
    ValueError
        A negative sample weight or an unknown reduction.
    RuntimeError
        A label out of range.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> proxy_anchor_loss(x, x, torch.tensor([0, 1]), alpha=1.0, margin=0.0)  # log(1 + 1/e) + log(1 + 1)
    tensor(1.0064)
    """
    num_classes = proxies.shape[0]
    present, log_v = log_sample_weights(sample_weights, embeddings)
    of_class, log_w = samples_of_classes(labels, num_classes, label_weights)
    positive = of_class & present  # (C, B): x in X_p⁺
    negative = ~of_class & present  # (C, B): x in X_p⁻

    S = cosine_similarity(proxies, embeddings)  # (C, B)
    positive_terms = log_one_plus_sum_exp(log_v + log_w - alpha * (S - margin), positive)
    remaining = without_similar(negative, S, drop_similar_negatives)
    negative_terms = log_one_plus_sum_exp(log_v + alpha * (S + margin), remaining)
    # The second divisor is |P| = C, whether or not a proxy has a negative in this batch.
    return reduce_proxies(positive_terms / count_nonempty(positive) + negative_terms / num_classes, reduction)
