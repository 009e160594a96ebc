"""Contrastive losses with a softmax or a sigmoid over candidates: SupCon, NT-Xent, InfoNCE, RINCE and SigLIP."""

import torch
from torch import Tensor

from .anchor import cosine_similarity
from .pairs import batch_pairs, pair_sets, without_absent
from .reduction import count_present, mean_over_samples


def log_sum_exp(exponents: Tensor, members: Tensor) -> Tensor:
    """Log Σ over the members of each row, (B,); −inf, with gradient 0, for a row without.

    Parameters
    ----------
    exponents : Tensor, (B, m)
    members : Tensor, (B, m), bool

    Returns
    -------
    Tensor, (B,)

    Examples
    --------
    >>> log_sum_exp(torch.zeros(1, 3), torch.tensor([[True, True, False]]))
    tensor([0.6931])
    """
    some = members.any(1)
    return exponents.masked_fill(~members & some[:, None], -torch.inf).logsumexp(1).masked_fill(~some, -torch.inf)


def supcon_losses(Z: Tensor, positive: Tensor, negative: Tensor, form: str = "outside") -> Tensor:
    """Khosla et al. 2020, Eqs. 2 and 3, from the logits z = s/τ; 0 for a row without positives.

    ::

        outside: ℓ_i = log Σ_{j∈P_i∪N_i} e^{z_ij} − 1/|P_i| Σ_{p∈P_i} z_ip
        inside:  ℓ_i = log Σ_{j∈P_i∪N_i} e^{z_ij} − log(1/|P_i| Σ_{p∈P_i} e^{z_ip})

    Parameters
    ----------
    Z : Tensor, (B, m)
    positive, negative : Tensor, (B, m), bool
    form : {"outside", "inside"}
        Whether the mean over the positives is outside or inside of the logarithm.

    Returns
    -------
    Tensor, (B,)

    Examples
    --------
    >>> positive = torch.tensor([[True, False]])
    >>> supcon_losses(torch.zeros(1, 2), positive, ~positive)
    tensor([0.6931])
    """
    number = positive.sum(1).clamp(min=1).to(Z.dtype)
    target = (Z * positive).sum(1) / number if form == "outside" else log_sum_exp(Z, positive) - number.log()
    return (log_sum_exp(Z, positive | negative) - target).masked_fill(~positive.any(1), 0)


def nt_xent_losses(Z: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Chen et al. 2020 (SimCLR), Eq. 1: a term for each positive pair, whose denominator has its negatives alone.

    ::

        ℓ_ip = log(e^{z_ip} + Σ_{n∈N_i} e^{z_in}) − z_ip

    Parameters
    ----------
    Z : Tensor, (B, m)
        Logits z = s/τ.
    positive, negative : Tensor, (B, m), bool

    Returns
    -------
    Tensor, (B, m)
        0 where there is no positive pair.

    Examples
    --------
    >>> positive = torch.tensor([[True, False]])
    >>> nt_xent_losses(torch.zeros(1, 2), positive, ~positive)
    tensor([[0.6931, 0.0000]])
    """
    differences = Z - log_sum_exp(Z, negative)[:, None]
    return torch.where(positive, -torch.nn.functional.logsigmoid(differences), 0)


def rince_losses(Z: Tensor, positive: Tensor, negative: Tensor, q: float, lam: float) -> Tensor:
    """Chuang et al. 2022, Eq. 5, of rows with one positive each.

    ::

        ℓ_i = −e^{q z_ip}/q + (λ Σ_{j∈P_i∪N_i} e^{z_ij})^q/q

    Parameters
    ----------
    Z : Tensor, (B, m)
        Logits z = s/τ.
    positive, negative : Tensor, (B, m), bool
    q, lam : float
        0 < q ≤ 1; λ > 0.

    Returns
    -------
    Tensor, (B,)

    Examples
    --------
    >>> positive = torch.tensor([[True, False]])
    >>> rince_losses(torch.zeros(1, 2), positive, ~positive, 1.0, 1.0)
    tensor([1.])
    """
    none = ~positive.any(1)
    total = (Z.exp() * (positive | negative)).sum(1).masked_fill(none, 1)
    return (((lam * total) ** q - ((q * Z).exp() * positive).sum(1)) / q).masked_fill(none, 0)


def supcon_loss(
    embeddings: Tensor,
    labels: Tensor,
    vectors: Tensor | None = None,
    vector_labels: Tensor | None = None,
    temperature: float = 0.1,
    form: str = "outside",
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
    ids: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """SupCon: :func:`supcon_losses` of cosines over the temperature, averaged over those above 0.

    A batch without a negative pair has loss 0, as in pytorch-metric-learning.

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,) or (B, K)
        Embeddings are normalised here. The label ``ABSENT``: the sample is absent.
    vectors, vector_labels : Tensor, (m, D) and (m,), optional
        The candidates; None: the samples themselves. See :func:`python_ref.pairs.pair_sets`.
    temperature : float
        Temperature τ.
    form : {"outside", "inside"}
    sample_weights : Tensor, (B,), optional
        Multiply the losses. Weight 0: the sample is absent, among the candidates as well.
    reduction : {"mean", "none"}
        "none" gives (B,).
    ids : tuple of Tensor, (B,) and (m,)
        Of samples and vectors, see :func:`python_ref.pairs.pair_sets`.

    Returns
    -------
    Tensor, () or (B,)

    Examples
    --------
    >>> X = torch.eye(3)
    >>> supcon_loss(X, torch.tensor([0, 0, 1]), temperature=1.0)
    tensor(0.6931)
    """
    candidates, positive, negative = batch_pairs(embeddings, labels, vectors, vector_labels, sample_weights, ids)
    Z = cosine_similarity(embeddings, candidates) / temperature
    losses = supcon_losses(Z, positive, negative, form) * negative.any()
    weighted = losses if sample_weights is None else losses * sample_weights
    return weighted if reduction == "none" else weighted.sum() / max(1, int((losses > 0).sum()))


def nt_xent_loss(
    embeddings: Tensor,
    labels: Tensor,
    vectors: Tensor | None = None,
    vector_labels: Tensor | None = None,
    temperature: float = 0.07,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
    ids: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """NT-Xent: the mean of :func:`nt_xent_losses` over all positive pairs.

    Parameters
    ----------
    embeddings, labels, vectors, vector_labels, temperature, sample_weights, ids
        As in :func:`supcon_loss`.
    reduction : {"mean", "none"}
        "none" gives (B,), whose mean over samples of non-zero weight is the loss.

    Returns
    -------
    Tensor, () or (B,)

    Examples
    --------
    >>> X = torch.eye(3)
    >>> nt_xent_loss(X, torch.tensor([0, 0, 1]), temperature=1.0)
    tensor(0.6931)
    """
    candidates, positive, negative = batch_pairs(embeddings, labels, vectors, vector_labels, sample_weights, ids)
    Z = cosine_similarity(embeddings, candidates) / temperature
    losses = nt_xent_losses(Z, positive, negative).sum(1) / max(1, int(positive.sum()))
    return mean_over_samples(losses * count_present(losses, sample_weights), sample_weights, reduction)


def info_nce_loss(
    a: Tensor,
    b: Tensor,
    logit_scale: Tensor,
    negatives: Tensor | None = None,
    sample_weights: Tensor | None = None,
    symmetric: bool = True,
    q: float | None = None,
    lam: float = 0.01,
    duplicates: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """InfoNCE of two towers, whose rows i belong together: both directions' mean, or that of ``a`` alone.

    Parameters
    ----------
    a, b : Tensor, (B, D)
        Normalised here.
    logit_scale : Tensor, ()
        log 1/τ, as CLIP learns it.
    negatives : Tensor, (m, D), optional
        More candidates of ``a``.
    sample_weights : Tensor, (B,), optional
        Multiply the losses of both directions. Weight 0: the pair is absent.
    symmetric : bool
    q, lam : float
        RINCE; q None: InfoNCE.
    duplicates : tuple of Tensor, (B, B + m) and (B, B) bool, optional
        Pairs of ``a`` with its candidates, and of ``b`` with ``a``, that are no negatives.

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> info_nce_loss(torch.eye(2), torch.eye(2), torch.tensor(0.0))
    tensor(0.3133)
    """
    weights = torch.ones(len(a), dtype=a.dtype) if sample_weights is None else sample_weights
    own = without_absent(torch.arange(len(a)), weights)

    def mean_of(rows: Tensor, candidates: Tensor, side: int) -> Tensor:
        Z = logit_scale.exp() * cosine_similarity(rows, candidates)
        positive, negative = pair_sets(own, torch.cat([own, own.new_full((len(candidates) - len(own),), -1)]))
        if duplicates is not None:
            negative = negative & ~duplicates[side]
        each = supcon_losses(Z, positive, negative) if q is None else rince_losses(Z, positive, negative, q, lam)
        return mean_over_samples(each, weights)

    there = mean_of(a, b if negatives is None else torch.cat([b, negatives]), 0)
    return (there + mean_of(b, a, 1)) / 2 if symmetric else there


def sigmoid_loss(
    a: Tensor,
    b: Tensor,
    logit_scale: Tensor,
    logit_bias: Tensor,
    sample_weights: Tensor | None = None,
    duplicates: Tensor | None = None,
) -> Tensor:
    """Zhai et al. 2023 (SigLIP), Eq. 1: a logistic loss for each pair of the batch.

    ::

        L = −1/B Σ_i Σ_j log σ(±(e^{t'} s_ij + b))        + where i = j

    Parameters
    ----------
    a, b : Tensor, (B, D)
        Normalised here.
    logit_scale, logit_bias : Tensor, ()
        Logarithm t' of the scale of the cosines, and bias b.
    sample_weights : Tensor, (B,), optional
        Multiply the terms of row i. Weight 0: the pair is absent.
    duplicates : Tensor, (B, B) bool, optional
        Pairs that are no negatives.

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> sigmoid_loss(torch.eye(2), torch.eye(2), torch.tensor(0.0), torch.tensor(0.0))
    tensor(1.0064)
    """
    weights = torch.ones(len(a), dtype=a.dtype) if sample_weights is None else sample_weights
    sign = 2 * torch.eye(len(a), dtype=a.dtype) - 1
    Z = logit_scale.exp() * cosine_similarity(a, b) + logit_bias
    counted = (weights > 0).expand(len(a), -1)
    if duplicates is not None:
        counted = counted & ~duplicates | torch.eye(len(a), dtype=torch.bool)
    return mean_over_samples((-torch.nn.functional.logsigmoid(sign * Z) * counted).sum(1), weights)
