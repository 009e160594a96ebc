"""The log-sum-exp over classes that Proxy-NCA, SoftTriple and PRISM have in common, as a dense matrix of logits."""

import torch
from torch import Tensor

from .anchor import cosine_similarity


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
    **similarity: object,
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of the logits of all classes, and the logit of the label.

    ::

        logit_xk = scale_k s'_xk + bias_k + target_bias [k = y_x],    lse_x = log Σ_k e^{logit_xk}

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,)
    proxies : Tensor, (C, D) or (C, H, D)
    scale : float or Tensor, (C,)
    bias : Tensor, (C,), optional
        −∞ masks a class.
    exclude_target : bool
        Sum over k ≠ y_x.
    **similarity
        As :func:`pooled_similarity` takes them.

    Returns
    -------
    lse, target : Tensor, (B,) each
        lse is −∞, with zero gradient, where no class is left.

    Examples
    --------
    >>> class_log_sum_exp(torch.eye(2), torch.eye(2), torch.tensor([0, 1]))  # log(e + 1)
    (tensor([1.3133, 1.3133]), tensor([1., 1.]))
    """
    s = pooled_similarity(embeddings, proxies, **similarity)
    own = torch.nn.functional.one_hot(labels, len(proxies)).bool()
    logits = scale * s + (0 if bias is None else bias)
    logits = torch.where(own, logits + target_bias, logits)
    target = (logits.masked_fill(~own, 0)).sum(1)
    counted = logits.masked_fill(own, -torch.inf) if exclude_target else logits
    empty = (counted == -torch.inf).all(1, keepdim=True)
    # The derivative of a logsumexp over −∞ alone is NaN.
    lse = torch.logsumexp(counted.masked_fill(empty, 0), 1).masked_fill(empty[:, 0], -torch.inf)
    return lse, target
