"""The log-sum-exp over classes that Proxy-NCA, SoftTriple and PRISM have in common, as a dense matrix of logits."""

import math

import torch
from torch import Tensor

from .anchor import cosine_similarity
from .pairs import ABSENT


def pooled_similarity(
    embeddings: Tensor,
    proxies: Tensor,
    pooling: str = "none",
    gamma: float | None = None,
    normalize_proxies: bool = True,
) -> Tensor:
    """Similarity of every sample with every class.

    ::

        s'_xk = s_xk,    max_h s_xkh,    or  Σ_h softmax_h(s_xkh / γ) s_xkh

    Parameters
    ----------
    embeddings : Tensor, (B, D)
        Normalised here.
    proxies : Tensor, (C, D) or (C, H, D)
        Normalised here where ``normalize_proxies``.
    pooling : {"none", "max", "softmax"}
    gamma : float, optional
        γ of "softmax".

    Returns
    -------
    Tensor, (B, C)

    Examples
    --------
    >>> pooled_similarity(torch.tensor([[2.0, 0.0]]), torch.tensor([[[0.0, 1.0], [3.0, 4.0]]]), "max")
    tensor([[0.6000]])
    """
    C, D = len(proxies), proxies.shape[-1]
    rows = proxies.reshape(-1, D)
    if normalize_proxies:
        s = cosine_similarity(embeddings, rows)
    else:
        s = cosine_similarity(embeddings, torch.eye(D, dtype=embeddings.dtype)) @ rows.T
    s = s.reshape(len(embeddings), C, len(rows) // C)
    if pooling == "max":
        return s.max(dim=2).values
    if pooling == "softmax":
        return (torch.softmax(s / gamma, dim=2) * s).sum(2)
    return s.squeeze(2)


def class_log_sum_exp(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    scale: float | Tensor = 1.0,
    bias: Tensor | None = None,
    target_bias: float = 0.0,
    exclude_target: bool = False,
    drop_similar_negatives: float | Tensor = math.inf,
    **similarity: object,
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of the logits of all classes, and the logits of the labels.

    ::

        logit_xk = scale_k s'_xk + bias_k + target_bias [k ∈ Y_x],
        lse_x = log Σ_{k ∈ Y_x or s'_xk ≤ drop} e^{logit_xk}

    Parameters
    ----------
    embeddings : Tensor, (B, D)
    labels : Tensor, (B,), or (B, K) with ABSENT
        Y_x, one class or several.
    proxies : Tensor, (C, D) or (C, H, D)
    scale : float or Tensor, (C,)
    bias : Tensor, (C,), optional
        −∞ masks a class.
    exclude_target : bool
        Sum over k ∉ Y_x.
    drop_similar_negatives : float
        Other classes of a larger s' are left out.
    **similarity
        As :func:`pooled_similarity` takes them.

    Returns
    -------
    lse, target : Tensor, (B,) and as labels
        lse is −∞, with zero gradient, where no class is left.

    Examples
    --------
    >>> class_log_sum_exp(torch.eye(2), torch.eye(2), torch.tensor([0, 1]))  # log(e + 1)
    (tensor([1.3133, 1.3133]), tensor([1., 1.]))
    """
    s = pooled_similarity(embeddings, proxies, **similarity)
    places = labels if labels.dim() == 2 else labels[:, None]
    absent = places == ABSENT
    places = places.masked_fill(absent, len(proxies))
    own = torch.zeros(len(s), len(proxies) + 1, dtype=torch.bool).scatter(1, places, True)[:, :-1]
    logits = scale * s + (0 if bias is None else bias)
    logits = torch.where(own, logits + target_bias, logits)
    target = logits.gather(1, places.clamp(max=len(proxies) - 1)).masked_fill(absent, -torch.inf).view(labels.shape)
    left_out = own if exclude_target else torch.zeros_like(own)
    limits = torch.as_tensor(drop_similar_negatives).view(-1, 1)
    counted = logits.masked_fill(left_out | (~own & (s > limits)), -torch.inf)
    empty = (counted == -torch.inf).all(1, keepdim=True)
    # The derivative of a logsumexp over −∞ alone is NaN.
    lse = torch.logsumexp(counted.masked_fill(empty, 0), 1).masked_fill(empty[:, 0], -torch.inf)
    return lse, target


def soft_cross_entropy(
    similarity: Tensor,
    moved: Tensor,
    labels: Tensor,
    label_weights: Tensor,
    scale: float = 1.0,
    drop_similar_negatives: float | Tensor = math.inf,
) -> Tensor:
    """Cross-entropy with targets of several classes, each with its margin, and without negatives that are similar.

    ::

        z_ik = scale moved_ik for k ∈ Y_i,  else scale s_ik
        ℓ_i  = −Σ_{k ∈ Y_i} q_ik (z_ik − log Σ_{k ∈ Y_i or s_ik ≤ drop} e^{z_ik})

    Parameters
    ----------
    similarity, moved : Tensor, (B, C)
        s, and s with the margin that each class would have as a label.
    labels, label_weights : Tensor, (B, K)
        Y with ABSENT, and q.
    scale, drop_similar_negatives : float

    Returns
    -------
    Tensor, (B,)

    Examples
    --------
    >>> s = torch.eye(2)
    >>> soft_cross_entropy(s, s, torch.tensor([[0, 1], [1, ABSENT]]), torch.tensor([[0.5, 0.5], [1.0, 9.0]]))
    tensor([0.8133, 0.3133])
    """
    B, C = similarity.shape
    q = similarity.new_zeros(B, C + 1).scatter_add(1, labels.masked_fill(labels == ABSENT, C), label_weights)[:, :-1]
    own = torch.zeros(B, C + 1, dtype=torch.bool).scatter(1, labels.masked_fill(labels == ABSENT, C), True)[:, :-1]
    left_out = ~own & (similarity > torch.as_tensor(drop_similar_negatives).view(-1, 1))
    z = scale * torch.where(own, moved, similarity)
    lse = torch.logsumexp(z.masked_fill(left_out, -torch.inf), 1, keepdim=True)
    return (q * (lse - z)).sum(1)
