"""Phan, Tran, Huy, Duong, Nguyen, Bui, Truong: Adaptive Proxy Anchor Loss for Deep Metric Learning."""

import torch
from torch import Tensor

from .anchor import (
    cosine_similarity,
    count_nonempty,
    log_one_plus_sum_exp,
    log_sample_weights,
    reduce_proxies,
    without_similar,
)


def adaptive_proxy_anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    margins: Tensor,
    alpha: float = 32.0,
    regularization: float = 1.0,
    negative_margin: str = "sample",
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
    drop_similar_negatives: float | Tensor | None = None,
) -> Tensor:
    """Adaptive Proxy-Anchor loss, Eq. 4, the sum of Eq. 2 and λ over Eq. 3.

    ::

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺} e^{-α(s(x,p) - m_x)})
          + 1/|P|  Σ_{p∈P}  log(1 + Σ_{x∈X_p⁻} e^{ α(s(x,p) + m_x)})  +  λ / mean(m)

    m_x is the margin of the class of sample x.

    Parameters
    ----------
    embeddings : Tensor, (B, D)
        X, normalised here.
    proxies : Tensor, (C, D)
        P, normalised here.
    labels : Tensor, (B,), int64
        Classes in 0..C-1.
    margins : Tensor, () or (1,) or (C,)
        m: one margin for all classes (which the paper recommends), or one per class.
    alpha : float
        α, the scale.
    regularization : float
        Weight λ of 1/mean(m).
    negative_margin : {"sample", "proxy"}
        Whose margin the negative term takes: the sample's (paper) or the proxy's (the authors' code).
    sample_weights : Tensor, (B,), optional
        Multiply the exponentials in both sums. Weight 0: the sample is absent.
    reduction : {"mean", "none"}
        "none" gives a vector over the proxies, (C,), whose sum is the loss; λ / mean(m) is spread evenly over it.
    drop_similar_negatives : float, optional
        Limit of the negatives' cosines, see :func:`python_ref.anchor.without_similar`. The divisors stay.

    Returns
    -------
    Tensor, () or (C,)
        An empty batch leaves λ / mean(m).

    Raises
    ------
    ValueError
        mean(m) is not positive, a sample weight is negative, or an option is unknown.
    RuntimeError
        A label out of range, or margins of another shape.

    Examples
    --------
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> adaptive_proxy_anchor_loss(x, x, torch.tensor([0, 1]), torch.tensor(0.5), alpha=1.0)
    tensor(3.4482)
    """
    if negative_margin not in ("sample", "proxy"):
        raise ValueError(f'negative_margin must be "sample" or "proxy", got {negative_margin!r}')
    mean_margin = margins.mean()  # Eq. 3
    # Erratum: λ / mean(m) has a pole at 0, below which the loss is unbounded from below; the authors' code does not
    # guard it. Erratum: the text says that the term constrains large margins; it penalises small ones.
    if not bool(mean_margin > 0):
        raise ValueError(
            f"margins must have a positive mean, got {float(mean_margin)}; clamp them or raise regularization"
        )

    num_classes = proxies.shape[0]
    present, log_v = log_sample_weights(sample_weights, embeddings)
    of_class = torch.nn.functional.one_hot(labels, num_classes).T.bool()
    positive = of_class & present  # (C, B): x in X_p⁺
    negative = ~of_class & present  # (C, B): x in X_p⁻

    class_margins = margins.expand(num_classes)
    sample_margins = class_margins[labels]  # (B,): m_x
    # Erratum: the authors' code broadcasts the margin of the proxy in the negative term, where Eq. 2 has the sample's.
    # A positive's class is its proxy's, so the positive term knows no difference; a shared margin knows none at all.
    negative_margins = sample_margins if negative_margin == "sample" else class_margins[:, None]

    S = cosine_similarity(proxies, embeddings)  # (C, B)
    positive_terms = log_one_plus_sum_exp(log_v - alpha * (S - sample_margins), positive)
    remaining = without_similar(negative, S, drop_similar_negatives)
    negative_terms = log_one_plus_sum_exp(log_v + alpha * (S + negative_margins), remaining)
    per_proxy = positive_terms / count_nonempty(positive) + negative_terms / num_classes  # Eq. 2
    return reduce_proxies(per_proxy + regularization / mean_margin / num_classes, reduction)  # Eq. 4
