"""Liu, Yu, Li, Shen, Gao, Ren, Xie, Cui: Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering.

Sections III-A to III-E and IV-E. The von Mises–Fisher distribution itself is in ``python_ref.vmf``, the losses of
Section III-F are in ``python_ref.prism_losses``.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .anchor import cosine_similarity
from .class_lse import pooled_similarity
from .procsim import otsu_threshold
from .vmf import vmf_concentration, vmf_log_density, vmf_mean_direction, vmf_mean_resultant_length


class MemoryQueue:
    """The memory bank of Section III-B: a list of (v, y), the oldest first.

    Parameters
    ----------
    capacity : int
        M, the rows that fit.

    Examples
    --------
    >>> queue = MemoryQueue(capacity=2)
    >>> queue.enqueue(torch.eye(3), torch.tensor([4, 5, 6]), keep=torch.tensor([True, True, True]))
    >>> queue.labels()
    tensor([5, 6])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: list[tuple[Tensor, int]] = []

    def enqueue(self, vectors: Tensor, labels: Tensor, keep: Tensor) -> None:
        """Append the kept rows of (B, D) ``vectors`` and drop the oldest beyond the capacity."""
        for vector, label, kept in zip(vectors.detach(), labels.tolist(), keep.tolist(), strict=True):
            if kept:
                self.rows.append((vector, label))
        self.rows = self.rows[-self.capacity :]

    def vectors(self) -> Tensor:
        """All v, (m, D), m ≥ 1."""
        return torch.stack([vector for vector, _ in self.rows])

    def labels(self) -> Tensor:
        """All y, (m,)."""
        return torch.tensor([label for _, label in self.rows], dtype=torch.int64)


def class_means(vectors: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """w_k, the mean unit vector of every class in the bank, not normalised again, Eq. 6.

    Parameters
    ----------
    vectors, labels : Tensor, (m, D) and (m,)
        The bank.
    num_classes : int
        Number of classes, C.

    Returns
    -------
    Tensor, (C, D)
        NaN for a class that is not in the bank.

    Examples
    --------
    >>> class_means(torch.eye(2), torch.tensor([1, 1]), 2)
    tensor([[   nan,    nan],
            [0.5000, 0.5000]])
    """
    return torch.stack([normalize(vectors[labels == k], dim=1).mean(0) for k in range(num_classes)])


def average_similarity(embeddings: Tensor, vectors: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """AvgSim: T(x_i, k), the mean cosine of a sample with the rows of class k, Eqs. 3 and 5.

    Parameters
    ----------
    embeddings : Tensor, (B, D)
        Normalised here.
    vectors, labels : Tensor, (m, D) and (m,)
        The bank.
    num_classes : int
        Number of classes, C.

    Returns
    -------
    Tensor, (B, C)
        −∞ for a class that is not in the bank.

    Examples
    --------
    >>> average_similarity(torch.tensor([[2.0, 0.0]]), torch.eye(2), torch.tensor([1, 1]), 2)
    tensor([[  -inf, 0.5000]])
    """
    T = normalize(embeddings, dim=1) @ class_means(vectors, labels, num_classes).T
    return T.masked_fill(torch.bincount(labels, minlength=num_classes) == 0, -math.inf)


def proxy_similarity(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """ProxySim: the cosine of a sample with the nearest of the H proxies of each class, Eq. 9.

    Parameters
    ----------
    embeddings : Tensor, (B, D)
    proxies : Tensor, (C, H, D)

    Returns
    -------
    Tensor, (B, C)

    Examples
    --------
    >>> proxies = torch.stack([torch.eye(2), -torch.eye(2)])
    >>> proxy_similarity(torch.tensor([[3.0, 4.0]]), proxies)
    tensor([[ 0.8000, -0.6000]])
    """
    return pooled_similarity(embeddings, proxies, "max")


def vmf_similarity(
    embeddings: Tensor, vectors: Tensor, labels: Tensor, num_classes: int, bias_correction: str = "none"
) -> Tensor:
    """vMF-Sim: log p_k(x_i) = log C_D(κ_k) + κ_k μ_k·x_i, Eqs. 10–13.

    Parameters
    ----------
    embeddings : Tensor, (B, D)
        Normalised here.
    vectors, labels : Tensor, (m, D) and (m,)
        The bank; normalised here. The vectors of a class must not all be equal, or κ is infinite.
    num_classes : int
        Number of classes, C.
    bias_correction : {"none", "u"}
        "none": the paper. "u": R̄² is replaced by (nR̄² − 1)/(n − 1), not below 0: an extension, since the R̄ of few
        vectors is too long.

    Returns
    -------
    Tensor, (B, C)
        −∞ for a class that is not in the bank. One vector alone has R̄ = 1, so Eq. 13 divides by 0: κ = 0 is taken, the
        uniform distribution.

    Examples
    --------
    >>> bank = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])
    >>> vmf_similarity(torch.eye(3), bank, torch.tensor([0, 0]), 1)  # R̄ = 0.8944: κ = 9.4164
    tensor([[-0.5895],
            [-4.8007],
            [-9.0118]])
    """
    X, V = normalize(embeddings, dim=1), normalize(vectors, dim=1)
    D = X.shape[1]
    columns = []
    for k in range(num_classes):
        members = V[labels == k]
        n = len(members)
        if n == 0:
            columns.append(X.new_full((len(X),), -math.inf))
            continue
        # Erratum: below Eq. 13 R̄ is printed without 1/n.
        R = vmf_mean_resultant_length(members)
        if bias_correction == "u" and n > 1:
            R = ((n * R**2 - 1) / (n - 1)).clamp(min=0).sqrt()
        kappa = vmf_concentration(R, D) if n > 1 else torch.zeros_like(R)
        columns.append(vmf_log_density(X, vmf_mean_direction(members)[None], kappa[None])[:, 0])
    return torch.stack(columns, dim=1)


def log_p_clean(similarity: Tensor, labels: Tensor, unseen: str = "skip") -> Tensor:
    """Log P_clean, a softmax over the classes, Eqs. 2, 7, 8 and 14.

    Parameters
    ----------
    similarity : Tensor, (B, C)
        T, a similarity or a log-density. −∞ marks a class that is not in the bank.
    labels : Tensor, (B,)
    unseen : {"skip", "zero"}
        Whether a class that is not in the bank is left out of the denominator, or adds e⁰ as in the public code.

    Returns
    -------
    Tensor, (B,)
        0, P_clean = 1, for a sample whose class is not in the bank (line 9 of Algorithm 1).

    Examples
    --------
    >>> log_p_clean(torch.tensor([[0.0, 0.0, -torch.inf]]).expand(2, 3), torch.tensor([0, 2])).exp()
    tensor([0.5000, 1.0000])
    """
    known = similarity.gather(1, labels[:, None])[:, 0] > -math.inf
    if unseen == "zero":
        similarity = torch.where(similarity == -math.inf, 0, similarity)
    log_p = similarity.gather(1, labels[:, None])[:, 0] - torch.logsumexp(similarity, dim=1)
    return torch.where(known, log_p, 0)


def batch_positive_similarity(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Ablation "Batch-positive", Eq. 20: the mean cosine with the other samples of the class in the batch.

    Erratum: the sum is printed with j = i in it, over K − 1; j ≠ i is meant.

    Returns
    -------
    Tensor, (B,)
        Proportional to P_clean; 1, the maximum, for a sample without another.

    Examples
    --------
    >>> batch_positive_similarity(torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
    tensor([0.6000, 0.6000, 1.0000])
    """
    others = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    total = (cosine_similarity(embeddings, embeddings) * others).sum(1)
    return torch.where(others.any(1), total / others.sum(1).clamp(min=1), 1)


def memory_positive_similarity(embeddings: Tensor, labels: Tensor, vectors: Tensor, vector_labels: Tensor) -> Tensor:
    """Ablation "Memory-positive", Eq. 21: the mean cosine with the rows of the class in the bank.

    Returns
    -------
    Tensor, (B,)
        Proportional to P_clean; 1, the maximum, for a class that is not in the bank.

    Examples
    --------
    >>> memory_positive_similarity(torch.eye(2), torch.tensor([0, 1]), torch.tensor([[0.6, 0.8]]), torch.tensor([0]))
    tensor([0.6000, 1.0000])
    """
    positive = labels[:, None] == vector_labels
    total = (cosine_similarity(embeddings, vectors) * positive).sum(1)
    return torch.where(positive.any(1), total / positive.sum(1).clamp(min=1), 1)


def top_r_threshold(scores: Tensor, noise_rate: float) -> Tensor:
    """TRM, Section III-E: the ⌊R·B⌋-th smallest score of the batch; it and all scores below are noisy.

    Parameters
    ----------
    scores : Tensor, (B,)
        Log P_clean, or anything that grows with it.
    noise_rate : float
        R in [0, 1].

    Returns
    -------
    Tensor, ()
        −∞ where R·B < 1: none is removed.

    Examples
    --------
    >>> top_r_threshold(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5)
    tensor(2.)
    """
    if not 0 <= noise_rate <= 1:
        raise ValueError(f"noise_rate must lie in [0, 1], got {noise_rate}")
    removed = math.floor(round(noise_rate * len(scores), 9))  # 0.29 · 100 is 28.999999999999996
    return scores.sort().values[removed - 1] if removed else scores.new_tensor(-math.inf)


def smooth_top_r_threshold(log_quantiles: Tensor, window: int) -> Tensor:
    """sTRM, Eq. 15: m = 1/τ Σ Q_j over the last τ batches, as log m.

    Errata: the sum is printed with τ + 1 terms. The mean over fewer than τ batches is that of all so far.

    Parameters
    ----------
    log_quantiles : Tensor, (n,)
        Log Q_j = :func:`top_r_threshold` of log P_clean of each batch, the present one last.
    window : int
        Number of batches τ in the mean.

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> smooth_top_r_threshold(torch.tensor([0.9, 0.5, 0.1]).log(), window=2).exp()
    tensor(0.3000)
    """
    last = log_quantiles[-window:]
    return torch.logsumexp(last, dim=0) - math.log(len(last))


def otsu_cut(scores: Tensor, known: Tensor) -> Tensor:
    """Otsu's cut between right and wrong labels, as ProcSim cuts losses; an extension, which needs no noise rate.

    The cut is of u = log(1 − log P_clean): −log P_clean of wrong labels spreads over two orders of magnitude, and a cut
    on its own scale would separate wrong labels from each other.

    Parameters
    ----------
    scores : Tensor, (B,)
        Log P_clean.
    known : Tensor, (B,), bool
        Whether the bank has the sample's class; others are left out of the cut.

    Returns
    -------
    Tensor, ()
        log m = 1 − e^u at Otsu's cut u; −∞ where there is no cut.

    Examples
    --------
    >>> otsu_cut(torch.tensor([0.0, -0.1, -0.2, -40.0, -200.0]), torch.ones(5, dtype=torch.bool))
    tensor(-6.0143)
    """
    return -torch.expm1(scores.new_tensor(otsu_threshold(torch.log1p(-scores[known]))))


def is_clean(scores: Tensor, threshold: Tensor | float, known: Tensor) -> Tensor:
    """Lines 8, 9 and 17 of Algorithm 1: a score above m, or a class met for the first time.

    Erratum: Section III-A has "P_clean falls under m … clean"; above is clean, as in line 17. A batch of new classes
    alone has P_clean = 1 and m = 1: its samples are clean by line 9, or an empty bank would stay empty.

    Parameters
    ----------
    scores : Tensor, (B,)
        Log P_clean, or one of the ablations.
    threshold : Tensor, () or float
        m, on the same scale.
    known : Tensor, (B,), bool
        Whether the bank has the sample's class.

    Returns
    -------
    Tensor, (B,), bool

    Examples
    --------
    >>> is_clean(torch.tensor([-2.0, -1.0, 0.0]), 0.0, torch.tensor([True, True, False]))
    tensor([False, False,  True])
    """
    return (scores > threshold) | ~known


def authors_filter(
    p_clean: Tensor, window: list[float], noise_rate: float, window_size: int
) -> tuple[Tensor, list[float]]:
    """Verdict of the authors' public code on a batch, which replaces Eq. 15 and lines 9 and 17 of Algorithm 1.

    Parameters
    ----------
    p_clean : Tensor, (B,)
        1 for a sample whose class is not in the bank. The bank is not empty: with an empty one, all are kept.
    window : list of float
        The quantiles stored so far, the latest last.
    noise_rate : float
        R with ⌊R·B⌋ ≥ 1, or their code ends with an error.
    window_size : int
        How many quantiles are stored.

    Returns
    -------
    keep : Tensor, (B,), bool
        P above the mean of the window. Without a window, or where that keeps none: all but the ⌊R·B⌋ lowest, of equal
        ones the first.
    window : list of float
        With this batch's quantile, unless it is 1 or NaN; with that one alone where the mean kept none.

    Examples
    --------
    >>> authors_filter(torch.tensor([1.0, 0.3, 1.0, 1.0]), [], noise_rate=0.5, window_size=2)
    (tensor([False, False,  True,  True]), [])
    >>> authors_filter(torch.tensor([0.25, 0.125, 0.5, 1.0]), [0.5], noise_rate=0.5, window_size=2)
    (tensor([False, False,  True,  True]), [0.5, 0.25])
    >>> authors_filter(torch.tensor([0.25, 0.125]), [0.5], noise_rate=0.5, window_size=2)
    (tensor([ True, False]), [0.125])
    """
    order = p_clean.argsort(stable=True)
    removed = order[: int(noise_rate * len(p_clean))]
    by_rank = torch.ones(len(p_clean), dtype=torch.bool)
    by_rank[removed] = False
    quantile = float(p_clean[removed[-1]])
    if quantile < 1:
        window = [*window, quantile][-window_size:]
    if not window:
        return by_rank, window
    keep = p_clean > sum(window) / len(window)
    return (keep, window) if keep.any() else (by_rank, window[-1:])
