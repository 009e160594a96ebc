"""Softmax losses with a margin on the label's own logit: CosFace, ArcFace, with sub-centres, and AdaFace.

Wang et al.: CosFace (CVPR 2018). Deng et al.: ArcFace (CVPR 2019). Deng et al.: Sub-center ArcFace (ECCV 2020). Kim et
al.: AdaFace (CVPR 2022).
"""

import math

import torch
from torch import Tensor

from .class_lse import pooled_similarity
from .reduction import mean_over_samples


def cosface_loss(
    embeddings: Tensor,
    labels: Tensor,
    weights: Tensor,
    margin: float | Tensor = 0.35,
    scale: float = 64.0,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """CosFace, Eq. 4: the label's cosine less a margin.

    ::

        ℓ_i = −log( e^{s(cos θ_y − m)} / (e^{s(cos θ_y − m)} + Σ_{k≠y} e^{s cos θ_k}) )

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,)
        Embeddings are normalised here.
    weights : Tensor, (C, D)
        Normalised here; θ_k is the angle of the sample with w_k.
    margin, scale : float
        m and s; m may be (C,), one for each class.
    sample_weights, reduction
        As in :func:`python_ref.reduction.mean_over_samples`.

    Returns
    -------
    Tensor, () or (B,)

    Examples
    --------
    >>> X = torch.eye(2)
    >>> cosface_loss(X, torch.tensor([0, 1]), X, margin=1.0, scale=1.0)  # log(1 + e⁰)
    tensor(0.6931)
    """
    cosines = pooled_similarity(embeddings, weights)
    return _with_margin(cosines, cosines - margin, labels, scale, sample_weights, reduction)


def arcface_loss(
    embeddings: Tensor,
    labels: Tensor,
    weights: Tensor,
    margin: float | Tensor = 28.6,
    scale: float = 64.0,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """ArcFace, Eq. 3: a margin on the label's angle; with sub-centres, Eq. 2 of Sub-center ArcFace.

    ::

        ℓ_i = −log( e^{s f(θ_y)} / (e^{s f(θ_y)} + Σ_{k≠y} e^{s cos θ_k}) )
        f(θ) = cos(θ + m)            θ ≤ π − m
               cos θ − m sin m       above, where cos(θ + m) would rise again
        cos θ_k = max_h cos(x, w_kh)

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,)
        Embeddings are normalised here.
    weights : Tensor, (C, D) or (C, H, D)
        Normalised here.
    margin : float or Tensor
        m in degrees, one number or (C,).
    scale : float
        Scale s of the cosines.
    sample_weights, reduction
        As in :func:`python_ref.reduction.mean_over_samples`.

    Returns
    -------
    Tensor, () or (B,)

    Examples
    --------
    >>> X = torch.eye(2)
    >>> arcface_loss(X, torch.tensor([0, 1]), X, margin=90.0, scale=1.0)  # cos 90° = 0: log(1 + e⁰)
    tensor(0.6931)
    """
    cosines = pooled_similarity(embeddings, weights, "max" if weights.dim() == 3 else "none")
    return _with_margin(
        cosines, angular_margin(cosines, margin * (math.pi / 180)), labels, scale, sample_weights, reduction
    )


def adaface_loss(
    embeddings: Tensor,
    labels: Tensor,
    weights: Tensor,
    mean_length: Tensor,
    length_deviation: Tensor,
    margin: float = 0.4,
    scale: float = 64.0,
    concentration: float = 0.333,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """AdaFace, Eqs. 13 to 15: an angular and an additive margin by the length of the embedding.

    ::

        z_i = clip(h (‖x_i‖ − μ) / (σ + 0.001), −1, 1),  ‖x_i‖ within 0.001 … 100, a constant
        f(θ) = cos(θ − m z) − (m z + m),                 θ − m z within 0.001 … π − 0.001

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,)
        Embeddings are normalised here.
    weights : Tensor, (C, D)
        Normalised here.
    mean_length, length_deviation : Tensor, ()
        Running mean μ and deviation σ of the lengths of embeddings.
    margin, scale, concentration : float
        m, s and h.
    sample_weights, reduction
        As in :func:`python_ref.reduction.mean_over_samples`.

    Returns
    -------
    Tensor, () or (B,)

    Examples
    --------
    >>> X = torch.eye(2)  # z = 0: f(0) = 1 − m, but for the least angle
    >>> adaface_loss(X, torch.tensor([0, 1]), X, torch.ones(()), torch.ones(()), margin=1.0, scale=1.0)
    tensor(0.6931)
    """
    cosines = pooled_similarity(embeddings, weights)
    lengths = embeddings.detach().norm(dim=1).clamp(1e-3, 100)
    z = (concentration * (lengths - mean_length) / (length_deviation + 1e-3)).clamp(-1, 1)[:, None]
    angles = torch.acos(cosines.detach().clamp(-1, 1)) - margin * z
    limited = angles.clamp(1e-3, math.pi - 1e-3)
    moved = torch.where(angles == limited, _cosine_of_sum(cosines, -margin * z), limited.cos())
    return _with_margin(cosines, moved - margin * z - margin, labels, scale, sample_weights, reduction)


def angular_margin(cosines: Tensor, margin: float | Tensor) -> Tensor:
    """The f of :func:`arcface_loss`, for cosines of any shape and a ``margin`` in radians.

    df/dcos θ is infinite at θ = 0 and θ = π; there the derivative of the first term, cos θ cos m, replaces it.

    Examples
    --------
    >>> angular_margin(torch.tensor([0.0, -1.0]), math.pi / 2)  # cos 180°, and −1 − π/2
    tensor([-1.0000, -2.5708])
    """
    margin = torch.as_tensor(margin, dtype=cosines.dtype)
    angles = torch.acos(cosines.detach().clamp(-1, 1))
    return torch.where(angles <= math.pi - margin, _cosine_of_sum(cosines, margin), cosines - margin * margin.sin())


def _cosine_of_sum(cosines: Tensor, angle: Tensor) -> Tensor:
    """cos(θ + angle)."""
    at_end = cosines.detach().abs() >= 1
    sines = torch.where(at_end, 0.0, torch.where(at_end, 1.0, 1 - cosines**2).sqrt())
    return cosines * angle.cos() - sines * angle.sin()


def _with_margin(
    cosines: Tensor, moved: Tensor, labels: Tensor, scale: float, sample_weights: Tensor | None, reduction: str
) -> Tensor:
    """Cross-entropy of the cosines (B, C), those of the labels replaced by ``moved`` (B, C)."""
    own = torch.nn.functional.one_hot(labels, cosines.shape[1]).bool()
    losses = torch.nn.functional.cross_entropy(scale * torch.where(own, moved, cosines), labels, reduction="none")
    return mean_over_samples(losses, sample_weights, reduction)
