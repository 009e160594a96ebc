"""Liu, Yu, Li, Shen, Gao, Ren, Xie, Cui: Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering.

Section III-D: the von Mises–Fisher distribution, Eqs. 10–14.
"""

import math

import torch
from torch import Tensor


def vmf_log_density(x: Tensor, mean_direction: Tensor, kappa: Tensor) -> Tensor:
    """Log p(x) = log C_D(κ) + κ μ·x for every row and every class, Eq. 10.

    Parameters
    ----------
    x : Tensor, (B, D)
        Unit rows.
    mean_direction : Tensor, (C, D)
        μ, unit rows.
    kappa : Tensor, (C,)
        κ ≥ 0.

    Returns
    -------
    Tensor, (B, C)
        Per unit of area of the sphere.

    Examples
    --------
    >>> vmf_log_density(torch.eye(3)[:1], torch.eye(3)[:2], torch.tensor([1.0, 0.0]))  # log C_3(1) + 1, −log 4π
    tensor([[-1.6925, -2.5310]])
    """
    return vmf_log_normalizer(x.shape[1], kappa) + kappa * (x @ mean_direction.T)


def vmf_log_normalizer(dim: int, kappa: Tensor) -> Tensor:
    """Log C_D(κ), C_D(κ) = κ^(D/2−1) / ((2π)^(D/2) I_{D/2−1}(κ)), Eq. 11.

    I_v(κ)/κ^v = Σ_n κ^2n / (2^(2n+v) n! Γ(n+v+1)); its largest term has n ≤ κ/2, and it is √κ terms wide.

    Parameters
    ----------
    dim : int
        Dimension D of the vectors.
    kappa : Tensor, any shape
        κ ≥ 0, at most a few thousand: the series is summed as it stands.

    Returns
    -------
    Tensor
        As ``kappa``.

    Examples
    --------
    >>> vmf_log_normalizer(3, torch.tensor([0.0, 1.0]))  # −log 4π, −log(4π sinh 1)
    tensor([-2.5310, -2.6925])
    """
    v = dim / 2 - 1
    largest = float(kappa.detach().max()) if kappa.numel() else 0.0
    n = torch.arange(int(largest / 2 + 10 * math.sqrt(largest) + 50), dtype=torch.float64)
    k = kappa.double()[..., None]
    log_terms = torch.xlogy(2 * n, k) - (2 * n + v) * math.log(2) - torch.lgamma(n + 1) - torch.lgamma(n + v + 1)
    log_normalizer = -dim / 2 * math.log(2 * math.pi) - torch.logsumexp(log_terms, dim=-1)
    return log_normalizer.to(kappa.dtype)


def vmf_mean_direction(vectors: Tensor) -> Tensor:
    """μ = Σ v_i / ‖Σ v_i‖ of the (n, D) unit vectors of a class, Eq. 12: (D,).

    Examples
    --------
    >>> vmf_mean_direction(torch.eye(2))
    tensor([0.7071, 0.7071])
    """
    total = vectors.sum(0)
    return total / torch.linalg.vector_norm(total)


def vmf_mean_resultant_length(vectors: Tensor) -> Tensor:
    """R̄ = ‖Σ v_i‖ / n of the (n, D) unit vectors of a class: ().

    The paper's R̄, given below Eq. 13, lacks 1/n. With it κ of Eq. 13 would be negative from n = 2 on.

    Examples
    --------
    >>> vmf_mean_resultant_length(torch.eye(2))
    tensor(0.7071)
    """
    return torch.linalg.vector_norm(vectors.sum(0)) / len(vectors)


def vmf_concentration(mean_resultant_length: Tensor, dim: int) -> Tensor:
    """κ = R̄(D − R̄)/(1 − R̄²), Eq. 13.

    Banerjee et al., whom the paper follows, have R̄(D − R̄²)/(1 − R̄²).

    Examples
    --------
    >>> vmf_concentration(torch.tensor(0.88862, dtype=torch.float64), 128)  # the length that belongs to κ = 537
    tensor(536.9684, dtype=torch.float64)
    """
    R = mean_resultant_length
    return R * (dim - R) / (1 - R**2)


def vmf_log_posterior(x: Tensor, mean_direction: Tensor, kappa: Tensor) -> Tensor:
    """Log P(k | x) with equal priors, (B, C), Eq. 14: log P_clean of a sample is the entry of its label.

    Examples
    --------
    >>> vmf_log_posterior(torch.eye(3)[:1], torch.eye(3)[:2], torch.tensor([2.0, 2.0])).exp()  # σ(2), σ(−2)
    tensor([[0.8808, 0.1192]])
    """
    return torch.log_softmax(vmf_log_density(x, mean_direction, kappa), dim=1)
