"""Shared by the papers: cosine similarities, and the log-sum-exps that an anchor takes over its candidates.

The Proxy-Anchor family takes proxies as anchors and the batch as candidates, so matrices here are (C, B).
"""

import math

import torch
from torch import Tensor


def _unit_rows(vectors: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    is_zero = norm == 0
    # Dividing by 1 instead of 0 keeps the branch that is not taken finite, in the backward pass as well.
    return torch.where(is_zero, 0.0, vectors / torch.where(is_zero, 1.0, norm))


def cosine_similarity(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Cosine similarity of every anchor with every candidate.

    A zero vector has cosine 0 with everything and receives a zero gradient.

    Parameters
    ----------
    anchors : Tensor, (A, D)
        Need not be normalised.
    candidates : Tensor, (N, D)
        Need not be normalised.

    Returns
    -------
    Tensor, (A, N)

    Examples
    --------
    >>> cosine_similarity(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000],
            [0.0000]])
    """
    return _unit_rows(anchors) @ _unit_rows(candidates).T


def unit_distance(anchors: Tensor, candidates: Tensor) -> Tensor:
    """Euclidean distance √(2 − 2s) of the directions of every anchor and every candidate.

    It is computed from differences: the cosine has no digit of a small distance. A zero vector has distance √2 from
    all. A distance within rounding error is 0, without gradient.

    Parameters
    ----------
    anchors : Tensor, (A, D)
        Need not be normalised.
    candidates : Tensor, (N, D)
        Need not be normalised.

    Returns
    -------
    Tensor, (A, N)

    Examples
    --------
    >>> unit_distance(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, -1.0]]))
    tensor([[0.0000, 1.4142],
            [1.4142, 1.4142]])
    """
    U, V = _unit_rows(anchors), _unit_rows(candidates)
    square = (U[:, None] - V).square().sum(-1)
    # Distances from zero vectors are √2 by definition: each zero vector lacks 1 in the square.
    square = square + (U == 0).all(1)[:, None].to(U.dtype) + (V == 0).all(1).to(U.dtype)
    apart = square > (8 * torch.finfo(U.dtype).eps) ** 2
    return torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0)


def log_one_plus_sum_exp(exponents: Tensor, members: Tensor) -> Tensor:
    """Per row, log(1 + Σ e^z) over the members of the row's set.

    It is a log-sum-exp with one extra zero term: never negative, and exactly 0 with a zero gradient where the set is
    empty. Small sums keep their relative precision, large exponents do not overflow.

    Parameters
    ----------
    exponents : Tensor, (A, N)
        z. Entries outside the set are ignored, even inf or NaN.
    members : Tensor, (A, N), bool
        The set of each row.

    Returns
    -------
    Tensor, (A,)

    Examples
    --------
    >>> z = torch.tensor([[0.0, 1000.0], [5.0, 5.0]])
    >>> log_one_plus_sum_exp(z, torch.tensor([[True, True], [False, False]]))
    tensor([1000.,    0.])
    """
    z = exponents.masked_fill(~members, float("-inf"))
    # The extra term takes part in the maximum: the shift is never negative, and finite for an empty set.
    shift = torch.nn.functional.pad(z.detach(), (1, 0), value=0.0).amax(dim=-1)
    shifted_sum = torch.exp(z - shift[:, None]).sum(dim=-1)
    # 1 + Σ e^z = e^shift (e^-shift + Σ e^(z - shift)). With shift = 0 this is log1p(Σ e^z), exact for small sums.
    return shift + torch.log1p(shifted_sum + torch.expm1(-shift))


def count_nonempty(sets: Tensor) -> Tensor:
    """Count the anchors whose set is not empty, but at least 1, so that a mean over none of them is 0 / 1.

    Parameters
    ----------
    sets : Tensor, (A, N), bool
        The set of each anchor.

    Returns
    -------
    Tensor, (), integer

    Examples
    --------
    >>> count_nonempty(torch.tensor([[True, True], [False, False]]))
    tensor(1)
    """
    return sets.any(dim=1).sum().clamp(min=1)


def samples_of_classes(
    labels: Tensor, num_classes: int, label_weights: Tensor | None = None
) -> tuple[Tensor, Tensor | float]:
    """Samples of each class, and the logarithms of their weights there.

    Parameters
    ----------
    labels : Tensor, (B,) or (B, K), int64
        In 0..C-1; of several, negative numbers stand for none.
    num_classes : int
        Number of classes, C.
    label_weights : Tensor, (B, K), optional
        Those of a class listed twice are added; a weight of 0 is as no label. None: 1.

    Returns
    -------
    of_class : Tensor, (C, B), bool
    log_weights : Tensor, (C, B), or float
        0 for samples that are not of the class.

    Examples
    --------
    >>> of_class, log_weights = samples_of_classes(torch.tensor([[0, 1], [1, -1]]), 2, torch.tensor([[1, 2], [1, 1]]))
    >>> of_class.int(), log_weights.exp()
    (tensor([[1, 0],
            [1, 1]], dtype=torch.int32), tensor([[1., 1.],
            [2., 1.]]))
    """
    if labels.dim() == 1:
        return torch.nn.functional.one_hot(labels, num_classes).T.bool(), 0.0
    columns = labels.clamp(min=-1) + 1
    ones = torch.ones_like(labels, dtype=torch.float64) if label_weights is None else label_weights
    weights = ones.new_zeros(len(labels), num_classes + 1).scatter_add(1, columns, ones)[:, 1:].T
    of_class = weights > 0
    return of_class, 0.0 if label_weights is None else torch.where(of_class, weights, 1).log()


def without_similar(negative: Tensor, similarity: Tensor, limit: float | Tensor | None) -> Tensor:
    """Leave out the negatives that are more similar to the anchor than the limit: they may be of its class.

    Source: the filter between classes of An et al., "Partial FC: Training 10 Million Identities on a Single Machine",
    2021, in the authors' code.

    Parameters
    ----------
    negative : Tensor, (A, N), bool
        The negatives X_p⁻ of each anchor.
    similarity : Tensor, (A, N)
        Cosines. Which of them exceed the limit is a constant of the derivatives.
    limit : float or Tensor, optional
        In (−1, 1], or one of each candidate, (N,). None: nothing is left out.

    Returns
    -------
    Tensor, (A, N), bool

    Examples
    --------
    >>> without_similar(torch.tensor([[True, True, False]]), torch.tensor([[0.2, 0.9, 0.9]]), 0.4)
    tensor([[ True, False, False]])
    """
    return negative if limit is None else negative & ~(similarity > limit)


def own_class_limits(similarity: Tensor, labels: Tensor, dim: int) -> Tensor:
    """Limit of each sample's negatives: its cosine with its own class, or what chance may bring.

        t_x = max(max_{y∈Y_x} s(x, y), √(1 − C^(−2/(D−1))))

    About one random vector in ten exceeds the second with the nearest of C others.

    Parameters
    ----------
    similarity : Tensor, (B, C)
        Cosines, or those of the pooled centres.
    labels : Tensor, (B,) or (B, K), integers
        Classes of each sample; negative numbers are none.
    dim : int
        D, of the embeddings.

    Returns
    -------
    Tensor, (B,)
        Constants of the derivatives; ∞ for a sample without a class, which loses no negative.

    Examples
    --------
    >>> own_class_limits(torch.tensor([[0.9, 0.1], [0.2, 0.3]]), torch.tensor([0, -1]), 3)
    tensor([0.9000,    inf])
    """
    known, places = similarity.detach(), labels.view(len(labels), -1)
    own = known.gather(1, places.clamp(min=0)).masked_fill(places < 0, -torch.inf).amax(1)
    by_chance = math.sqrt(1 - similarity.shape[1] ** (-2 / (dim - 1))) if dim > 1 else 1.0
    return own.masked_fill(own == -torch.inf, torch.inf).clamp(min=by_chance)


def log_sample_weights(sample_weights: Tensor | None, samples: Tensor) -> tuple[Tensor, Tensor]:
    """Mask of the samples present, and the logarithms of their weights.

    A sample of weight 0 is absent, and the derivative with respect to that weight is defined as 0. (The one-sided
    derivative of the sums exists, but the divisors of the losses jump there.)

    Parameters
    ----------
    sample_weights : Tensor, (B,), or None
        u, not negative; None means 1 for every sample.
    samples : Tensor, (B, D)
        The samples, for their number, dtype and device.

    Returns
    -------
    present : Tensor, (B,), bool
        u > 0.
    log_weights : Tensor, (B,)
        log u; 0 for absent samples, which no set contains.

    Raises
    ------
    ValueError
        A weight is negative or NaN.

    Examples
    --------
    >>> log_sample_weights(torch.tensor([1.0, 0.0, 2.0]), torch.zeros(3, 8))
    (tensor([ True, False,  True]), tensor([0.0000, 0.0000, 0.6931]))
    """
    if sample_weights is None:
        sample_weights = samples.new_ones(len(samples))
    if not bool((sample_weights >= 0).all()):
        raise ValueError(f"sample_weights must not be negative or NaN, got {sample_weights}; 0 leaves a sample out")
    present = sample_weights > 0
    # Replaced before the logarithm: masking log 0 afterwards would leave 0 · ∞ in the backward pass.
    return present, torch.where(present, sample_weights, 1).to(samples.dtype).log()


def reduce_proxies(per_proxy: Tensor, reduction: str) -> Tensor:
    """Sum the proxies' terms ("mean", "sum"), or return them ("none"); each is divided already: the sum is the mean.

    Parameters
    ----------
    per_proxy : Tensor, (C,)
        Terms that sum to the loss.
    reduction : {"mean", "sum", "none"}

    Returns
    -------
    Tensor, () or (C,)

    Raises
    ------
    ValueError
        Another reduction.

    Examples
    --------
    >>> reduce_proxies(torch.tensor([1.0, 2.0]), "mean")
    tensor(3.)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    return per_proxy if reduction == "none" else per_proxy.sum()
