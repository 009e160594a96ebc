"""Zhang, Luo, Gu: Denoising Multi-Similarity Formulation: A Self-paced Curriculum-Driven Approach, AAAI 2023 (BSPML).

Model: Eqs. 3–7, with the embeddings' gradient left to autograd. Sample weights: Eqs. 6 and 8, Algorithms 1 and 3.
Classes are those that ``labels`` contains. A class of one sample has no positive pair, a single class no other one to
be balanced against: the mean over nothing is 0.
"""

import torch
from torch import Tensor

from .anchor import cosine_similarity
from .multi_similarity import multi_similarity_loss, multi_similarity_terms
from .pairs import pair_sets


def self_paced_terms(
    embeddings: Tensor, labels: Tensor, alpha: float = 2.0, beta: float = 50.0, base: float = 1.0
) -> tuple[Tensor, Tensor]:
    """ξ⁺ and ξ⁻ of every sample against all others, Eq. 3.

    Parameters
    ----------
    embeddings : Tensor, (N, D)
        Normalised here.
    labels : Tensor, (N,)
    alpha, beta, base : float
        α, β and ρ.

    Returns
    -------
    positive, negative : Tensor, (N,)

    Examples
    --------
    >>> self_paced_terms(torch.eye(3), torch.tensor([0, 0, 1]))
    (tensor([1.0635, 1.0635, 0.0000]), tensor([3.8575e-24, 3.8575e-24, 7.7150e-24]))
    """
    S = cosine_similarity(embeddings, embeddings)
    positive, negative = multi_similarity_terms(S, *pair_sets(labels), alpha, beta, base)
    return positive / alpha, negative / beta


def weighted_batch_loss(
    embeddings: Tensor,
    labels: Tensor,
    weights: Tensor,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 1.0,
    epsilon: float = 0.1,
) -> Tensor:
    """The weighted informative batch loss of each sample, Eq. 7; its mean is the paper's L_WBL.

    Parameters
    ----------
    embeddings : Tensor, (n, D)
        Normalised here.
    labels, weights : Tensor, (n,)
        Weights are constants here.
    alpha, beta, base, epsilon : float
        α, β, ρ, ε.

    Returns
    -------
    Tensor, (n,)
        Where an anchor has no informative pair, the term is 0 (the paper divides 0 by 0).

    Examples
    --------
    >>> X = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> weighted_batch_loss(X, torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.5, 1.0]))
    tensor([0.2928, 0.2940, 0.0000])
    """
    return weights * multi_similarity_loss(
        embeddings, labels, None, None, alpha, beta, base, epsilon, candidate_weights=weights, reduction="none"
    )


def self_paced_objective(
    weights: Tensor, positive: Tensor, negative: Tensor, labels: Tensor, lam: float, mu: float
) -> Tensor:
    """L(θ, w; λ), Eq. 6, with ξ of the model θ given.

    Parameters
    ----------
    weights, positive, negative, labels : Tensor, (N,)
        w, ξ⁺, ξ⁻ and classes.
    lam, mu : float
        Age parameter λ, and μ of the balance term.

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> xi = torch.tensor([0.5, 0.7, 0.0])
    >>> self_paced_objective(torch.ones(3), xi, xi, torch.tensor([0, 0, 1]), lam=1.0, mu=1.0)
    tensor(-0.8000)
    """
    classes = labels.unique().tolist()
    others = max(len(classes) - 1, 1)
    means = {c: weights[labels == c].mean() for c in classes}
    total = weights.new_zeros(())
    for c in classes:
        of_c = labels == c
        w, size = weights[of_c], int(of_c.sum())
        mean_of_others = sum((means[k] for k in classes if k != c), weights.new_zeros(())) / others
        rest = (w.sum() - w) / max(size - 1, 1)
        total = total + (w * (rest * positive[of_c] + mean_of_others * negative[of_c])).sum() / size
        total = total - lam * means[c]
        for k in classes:
            if k > c:
                total = total + mu / others * (means[c] - means[k]) ** 2
    return total


def self_paced_gradient(
    weights: Tensor, positive: Tensor, negative: Tensor, labels: Tensor, lam: float, mu: float
) -> Tensor:
    """∂L/∂w of :func:`self_paced_objective` by autograd, (N,).

    Examples
    --------
    >>> xi = torch.tensor([0.5, 0.7, 0.0])
    >>> self_paced_gradient(torch.ones(3), xi, xi, torch.tensor([0, 0, 1]), lam=1.0, mu=1.0)
    tensor([ 0.3500,  0.4500, -0.4000])
    """
    leaf = weights.detach().clone().requires_grad_()
    return torch.autograd.grad(self_paced_objective(leaf, positive, negative, labels, lam, mu), leaf)[0]


def stochastic_gradient(
    weights: Tensor,
    positive: Tensor,
    negative: Tensor,
    labels: Tensor,
    anchor: int,
    own: Tensor,
    others: list[Tensor],
    lam: float,
    mu: float,
) -> Tensor:
    """G(w_a), Eq. 8, from a given sample.

    Parameters
    ----------
    weights, positive, negative, labels : Tensor, (N,)
        As in :func:`self_paced_objective`.
    anchor : int
        The sample a.
    own : Tensor, (K,), integer
        Samples of the anchor's class, without the anchor.
    others : list of Tensor, each (K,), integer
        For each of P other classes, samples of it.
    lam, mu : float

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> xi, y = torch.tensor([0.5, 0.7, 0.0]), torch.tensor([0, 0, 1])
    >>> stochastic_gradient(torch.ones(3), xi, xi, y, 1, torch.tensor([0]), [torch.tensor([2])], lam=1.0, mu=1.0)
    tensor(0.4500)
    """
    classes, c = labels.unique().tolist(), labels[anchor]
    zero = weights.new_zeros(())
    G_p = (weights[own] * (positive[own] + positive[anchor])).mean() if len(own) else zero
    means = [(weights[n] * (negative[n] + negative[anchor])).mean() for n in others]
    G_n = torch.stack(means).mean() if means else zero
    class_means = [weights[labels == k].mean() for k in classes if k != c]
    G_b = 2 * mu * (weights[labels == c].mean() - torch.stack(class_means).mean()) if class_means else zero
    return (G_p + G_n + G_b - lam) / (labels == c).sum()


def doubly_stochastic_sample(
    labels: Tensor, num_classes: int, samples_per_class: int, generator: torch.Generator
) -> tuple[int, Tensor, list[Tensor]]:
    """A coordinate and its sample, lines 2 and 3 of Algorithm 3: all without replacement, all uniform.

    Parameters
    ----------
    labels : Tensor, (N,)
    num_classes, samples_per_class : int
        P and K; where fewer exist, all are taken.
    generator : torch.Generator

    Returns
    -------
    anchor : int
    own : Tensor
    others : list of Tensor
        As in :func:`stochastic_gradient`.

    Examples
    --------
    >>> anchor, own, others = doubly_stochastic_sample(torch.tensor([0, 0, 0, 1]), 1, 2, torch.Generator())
    >>> len(own) + len(others)
    3
    """

    def draw(population: Tensor, count: int) -> Tensor:
        return population[torch.randperm(len(population), generator=generator)[:count]]

    anchor = int(torch.randint(len(labels), (), generator=generator))
    of_class = labels == labels[anchor]
    of_class[anchor] = False
    own = draw(of_class.nonzero()[:, 0], samples_per_class)
    classes = labels.unique()
    chosen = draw(classes[classes != labels[anchor]], num_classes)
    return anchor, own, [draw((labels == k).nonzero()[:, 0], samples_per_class) for k in chosen]


def doubly_stochastic_descent(
    weights: Tensor,
    positive: Tensor,
    negative: Tensor,
    labels: Tensor,
    lam: float,
    mu: float,
    learning_rate: float,
    steps: int,
    generator: torch.Generator,
    num_classes: int = 16,
    samples_per_class: int = 4,
) -> Tensor:
    """Algorithm 3: projected steps of single weights along :func:`stochastic_gradient`.

    Parameters
    ----------
    weights, positive, negative, labels : Tensor, (N,)
        As in :func:`self_paced_objective`; w is where it starts.
    lam, mu : float
    learning_rate, steps : float, int
        γ, the same for all steps, and T.
    generator : torch.Generator
    num_classes, samples_per_class : int
        Number P of other classes, and K of samples of each class.

    Returns
    -------
    Tensor, (N,)
        In [0, 1].

    Examples
    --------
    >>> xi, y = torch.tensor([0.1, 0.1, 2.0, 0.1, 0.1]), torch.tensor([0, 0, 0, 1, 1])
    >>> random = torch.Generator().manual_seed(0)
    >>> doubly_stochastic_descent(torch.ones(5), xi, 0 * xi, y, 1.0, 0.0, 1.0, 100, random)
    tensor([1., 1., 0., 1., 1.])
    """
    weights = weights.clone()
    for _ in range(steps):
        a, own, others = doubly_stochastic_sample(labels, num_classes, samples_per_class, generator)
        G = stochastic_gradient(weights, positive, negative, labels, a, own, others, lam, mu)
        weights[a] = (weights[a] - learning_rate * G).clamp(0, 1)
    return weights


def next_age(lam: float, growth: float, lam_max: float) -> float:
    """λ of the next outer iteration, line 5 of Algorithm 1; lines 3 and 4 are training and Algorithm 3.

    Examples
    --------
    >>> next_age(1.0, 1.25, 4.0), next_age(3.9, 1.25, 4.0)
    (1.25, 4.0)
    """
    return min(growth * lam, lam_max)


def average_weights(weights: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """MAW and SDAW: mean and standard deviation of the classes' average weights, Eq. 14.

    Parameters
    ----------
    weights, labels : Tensor, (N,)

    Returns
    -------
    maw, sdaw : Tensor, ()

    Examples
    --------
    >>> average_weights(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1]))
    (tensor(0.7500), tensor(0.2500))
    """
    means = torch.stack([weights[labels == c].mean() for c in labels.unique()])
    return means.mean(), (means - means.mean()).square().mean().sqrt()
