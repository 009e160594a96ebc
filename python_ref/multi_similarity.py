"""Multi-similarity loss of Wang et al., as ProcSim (Barbany et al. 2024) and BSPML (Zhang et al. 2023) state it."""

import torch
from torch import Tensor

from .anchor import cosine_similarity, log_one_plus_sum_exp
from .pairs import batch_pairs
from .reduction import mean_over_samples


def informative_pairs(S: Tensor, positive: Tensor, negative: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mining, BSPML Eqs. 4 and 5.

    ::

        N̂_a = {n : S_an > min_{p∈P_a} S_ap − ε}      P̂_a = {p : S_ap < max_{n∈N_a} S_an + ε}

    Both extrema are those of the sets before mining. An anchor without positives keeps no negative, one without
    negatives no positive.

    Parameters
    ----------
    S : Tensor, (B, m)
    positive, negative : Tensor, (B, m), bool
    epsilon : float
        How far ε a pair may be from the hardest of the other sign.

    Returns
    -------
    positive, negative : Tensor, (B, m), bool

    Examples
    --------
    >>> S = torch.tensor([[0.9, 0.5, 0.45, 0.1]])
    >>> of_class = torch.tensor([[True, True, False, False]])
    >>> informative_pairs(S, of_class, ~of_class, 0.1)
    (tensor([[False,  True, False, False]]), tensor([[False, False,  True, False]]))
    """
    lowest_positive = S.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    highest_negative = S.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    # ε stands on the other side than in the paper, as in pytorch-metric-learning: the same but for rounding.
    return positive & (S - epsilon < highest_negative), negative & (S + epsilon > lowest_positive)


def multi_similarity_terms(
    S: Tensor, positive: Tensor, negative: Tensor, alpha: float, beta: float, base: float
) -> tuple[Tensor, Tensor]:
    """The two logarithms of ProcSim's Eq. 5 (BSPML's Eq. 3), without their 1/α and 1/β: (B,) each."""
    return (
        log_one_plus_sum_exp(-alpha * (S - base), positive),
        log_one_plus_sum_exp(beta * (S - base), negative),
    )


def multi_similarity_loss(
    embeddings: Tensor,
    labels: Tensor,
    vectors: Tensor | None = None,
    vector_labels: Tensor | None = None,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = None,
    sample_weights: Tensor | None = None,
    candidate_weights: Tensor | None = None,
    reduction: str = "mean",
    ids: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Multi-similarity loss, ProcSim Eq. 5; with candidate weights, the braces of BSPML Eq. 7.

    ::

        ℓ_i = 1/α log(1 + Σ_{j∈P_i} e^{-α(S_ij-δ)}) + 1/β log(1 + Σ_{j∈N_i} e^{β(S_ij-δ)})

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,) or (B, K)
        Embeddings are normalised here. The label ``ABSENT``: the sample is absent.
    vectors, vector_labels : Tensor, (m, D) and (m,), optional
        The candidates; None: the samples themselves. See :func:`python_ref.pairs.pair_sets`.
    alpha, beta, base : float
        α, β and δ (BSPML: ρ).
    epsilon : float, optional
        ε of the mining; None: all pairs.
    sample_weights : Tensor, (B,), optional
        Multiply the losses. Weight 0: the sample is absent, among the candidates of the others as well.
    candidate_weights : Tensor, (B,) or (m,), optional
        Each logarithm is multiplied by the mean weight of the candidates in its set: Σ_{p∈P̂} w_p / |P̂|. Constants.
    reduction : {"mean", "none"}
        "mean" divides by the number of samples of non-zero weight, whether or not they have pairs.
    ids : tuple of Tensor, (B,) and (m,)
        Of samples and vectors, see :func:`python_ref.pairs.pair_sets`.

    Returns
    -------
    Tensor, () or (B,)
        An empty batch gives 0, connected to the graph.

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> multi_similarity_loss(X, torch.tensor([0, 0, 1]), beta=1.0, base=0.0, reduction="none")  # third: log(1 + 2)
    tensor([0.7566, 0.7566, 1.0986])
    """
    candidates, positive, negative = batch_pairs(embeddings, labels, vectors, vector_labels, sample_weights, ids)
    if len(candidates) == 0:
        return mean_over_samples(0 * embeddings.sum(1), sample_weights, reduction)
    S = cosine_similarity(embeddings, candidates)
    if epsilon is not None:
        positive, negative = informative_pairs(S.detach(), positive, negative, epsilon)
    attraction, repulsion = multi_similarity_terms(S, positive, negative, alpha, beta, base)
    if candidate_weights is not None:
        # Erratum: 0/0 where no pair is informative. The term is 0.
        attraction = attraction * (positive * candidate_weights).sum(1) / positive.sum(1).clamp(min=1)
        repulsion = repulsion * (negative * candidate_weights).sum(1) / negative.sum(1).clamp(min=1)
    # Erratum: BSPML Eq. 7 prints |P̂|^α and |N̂|^β for |P̂|·α and |N̂|·β; its Eq. 6 has 1/α and 1/β.
    return mean_over_samples(attraction / alpha + repulsion / beta, sample_weights, reduction)
