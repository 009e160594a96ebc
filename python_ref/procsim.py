"""Barbany, Lin, Bastan, Dhua: ProcSim: Proxy-based Confidence for Robust Similarity Learning, WACV 2024.

Also its ancestor SuperLoss (Castells, Weinzaepfel, Revaud, NeurIPS 2020) and language guidance (Roth, Vinyals, Akata,
CVPR 2022), as the paper uses them. The losses per sample that enter Eq. 4 come from elsewhere, such as Eq. 5.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import kl_div, normalize

from .anchor import cosine_similarity


def proxy_nca_losses(X: Tensor, P: Tensor, y: Tensor, scale: float = 1.0, include_positive: bool = True) -> Tensor:
    """Proxy-NCA loss of every sample, −log(e^{−d(x,p_y)} / Σ_k e^{−d(x,p_k)}), d = scale ‖x̂ − p̂‖².

    Parameters
    ----------
    X, P, y : Tensor, (B, D), (C, D), (B,)
        Samples and proxies, any length; labels.
    scale : float
        The factor of the squared distance.
    include_positive : bool
        Whether k = y is in the denominator: ProxyNCA++, or else the loss of 2017, which may be negative.

    Returns
    -------
    Tensor, (B,)

    Examples
    --------
    >>> X, P = torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> proxy_nca_losses(X, P, torch.tensor([0]))  # d = 0 and 2: log(1 + e^-2)
    tensor([0.1269])
    >>> proxy_nca_losses(X, P, torch.tensor([0]), include_positive=False)
    tensor([-2.])
    """
    d = scale * (2 - 2 * cosine_similarity(X, P))
    own = torch.arange(len(P)) == y[:, None]
    others = d if include_positive else d.masked_fill(own, math.inf)
    return d[own] + torch.logsumexp(-others, dim=1)


def otsu_threshold(losses: Tensor, min_group: int = 2) -> float:
    """τ of Algorithm 1: the midpoint between sorted neighbours with the least variance inside the two groups.

    Parameters
    ----------
    losses : Tensor, (n,)
        Finite.
    min_group : int
        Least size of a group: 2 in the paper.

    Returns
    -------
    float
        ∞ where no midpoint leaves two groups of that size: fewer than 2·min_group losses, or all equal. C₀ is {ℓ < τ};
        the paper prints ≥ for both groups. Of equally good thresholds, the lowest.

    Examples
    --------
    >>> otsu_threshold(torch.tensor([5.0, 0.0, 1.0, 4.0, 1.0]))
    2.5
    >>> otsu_threshold(torch.tensor([1.0, 1.0, 1.0, 1.0]))
    inf
    """
    ordered = losses.sort().values
    best, threshold = math.inf, math.inf
    for i in range(min_group, len(ordered) - min_group + 1):
        candidate = (ordered[i - 1] + ordered[i]) / 2
        C0, C1 = losses[losses < candidate], losses[losses >= candidate]
        if min(len(C0), len(C1)) < min_group:  # the midpoint of two equal losses does not separate them
            continue
        cost = float((len(C0) * C0.var(correction=0) + len(C1) * C1.var(correction=0)) / len(losses))
        if cost < best * (1 - 1e-12):  # a difference within rounding error is a tie
            best, threshold = cost, float(candidate)
    return threshold


def lambert_w(x: Tensor) -> Tensor:
    """W(x), the principal branch, by bisection of w e^w = x; not differentiable.

    Parameters
    ----------
    x : Tensor
        At least −1/e; values below, left by rounding, count as −1/e.

    Returns
    -------
    Tensor

    Examples
    --------
    >>> lambert_w(torch.tensor([-0.2, 0.0, math.e]))
    tensor([-0.2592,  0.0000,  1.0000])
    """
    low = torch.where(x < 0, -1.0, 0.0).to(x.dtype)
    high = torch.log1p(x)  # w e^w >= e^w - 1
    for _ in range(200):
        middle = (low + high) / 2
        above = middle * torch.exp(middle) > x
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high


def confidence(losses: Tensor, threshold: float, lam: float) -> Tensor:
    """σ_i = exp(−W([(ℓ_i − τ)/2λ]₊)), Eq. 3: a constant, 1 for every loss up to the threshold.

    Parameters
    ----------
    losses : Tensor, (B,)
    threshold : float
        τ; ∞ for none.
    lam : float
        λ > 0.

    Returns
    -------
    Tensor, (B,)

    Examples
    --------
    >>> confidence(torch.tensor([0.0, 1.0, 1.0 + 2 * math.e]), 1.0, lam=1.0)
    tensor([1.0000, 1.0000, 0.3679])
    """
    return torch.exp(-lambert_w(((losses.detach() - threshold) / (2 * lam)).clamp(min=0)))


def procsim_loss(sigma: Tensor, dml_losses: Tensor, regularizer_losses: Tensor, omega: float) -> Tensor:
    """L = 1/B Σ_i (σ_i ℓ_i^DML + ω ℓ_i^SSL), Eq. 4.

    Parameters
    ----------
    sigma, dml_losses, regularizer_losses : Tensor, (B,)
        B > 0.
    omega : float
        Weight ω of the regulariser.

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> procsim_loss(torch.tensor([1.0, 0.5]), torch.tensor([2.0, 4.0]), torch.tensor([1.0, 3.0]), omega=0.1)
    tensor(2.2000)
    """
    return (sigma * dml_losses + omega * regularizer_losses).mean()


def superloss(losses: Tensor, tau: float, lam: float) -> tuple[Tensor, Tensor]:
    """Least (ℓ − τ)σ + λ log²σ over σ ≤ e, Eq. 1, with its σ, Eq. 2, which is a constant.

    Parameters
    ----------
    losses : Tensor, (n,)
    tau, lam : float
        τ and λ > 0.

    Returns
    -------
    loss, sigma : Tensor, (n,)

    Examples
    --------
    >>> superloss(torch.tensor([1.0, 1.0 + 2 * math.e]), tau=1.0, lam=1.0)
    (tensor([0., 3.]), tensor([1.0000, 0.3679]))
    """
    W = lambert_w(((losses.detach() - tau) / lam).clamp(min=-2 / math.e) / 2)
    sigma = torch.exp(-W)
    return (losses - tau) * sigma + lam * W**2, sigma


def language_guidance_losses(
    X: Tensor, text: Tensor, y: Tensor, shift: float = 1.0, temperature: float = 1.0, direction: str = "forward"
) -> Tensor:
    """Divergence of every row of the visual similarities from that of the language similarities.

    The language similarities are the mean of k matrices, one for each of the k texts of a sample, plus ``shift``.
    Entries of the same class, the diagonal among them, are 1 + shift in both matrices. B different labels and shift 0
    are the form without labels.

    Parameters
    ----------
    X : Tensor, (B, D)
        Samples.
    text : Tensor, (B, k, E)
        Embeddings of the names of the k classes that a classifier gives a sample; a constant.
    y : Tensor, (B,)
        Labels.
    shift, temperature : float
        The addend, and the divisor of both matrices in their softmax.
    direction : {"forward", "backward"}
        KL(language ‖ visual), or KL(visual ‖ language).

    Returns
    -------
    Tensor, (B,)
        Times temperature², which keeps the size of the gradient.

    Raises
    ------
    ValueError
        Another direction.

    Examples
    --------
    >>> X = torch.eye(2)
    >>> language_guidance_losses(X, X[:, None], torch.tensor([0, 1]))  # visual (2, 0), language (2, 1)
    tensor([0.0826, 0.0826])
    """
    if direction not in ("forward", "backward"):
        raise ValueError(f'direction must be "forward" or "backward", got {direction!r}')
    unit = normalize(text.detach(), dim=-1)
    same = y[:, None] == y
    language = torch.einsum("ike,jke->ijk", unit, unit).mean(-1) + shift
    log_p, log_q = (
        torch.log_softmax(similarities.masked_fill(same, 1 + shift) / temperature, dim=1)
        for similarities in (cosine_similarity(X, X), language)
    )
    first, second = (log_q, log_p) if direction == "forward" else (log_p, log_q)
    return temperature**2 * kl_div(second, first, reduction="none", log_target=True).sum(1)
