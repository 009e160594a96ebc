"""Liu, Yu, Li, Shen, Gao, Ren, Xie, Cui: Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering.

Section III-F: the losses that PRISM protects, by Wang et al. (cross-batch memory) and Qian et al. (SoftTriple).
"""

import torch
from torch import Tensor

from .anchor import cosine_similarity
from .class_lse import pooled_similarity
from .reduction import mean_over_samples


def memory_contrastive_loss(
    embeddings: Tensor,
    labels: Tensor,
    vectors: Tensor,
    vector_labels: Tensor,
    margin: float = 0.5,
    variant: str = "paper",
    keep: Tensor | None = None,
) -> Tensor:
    """Memory-based contrastive loss, Eq. 16 of the batch and Eq. 17 of batch and bank, summed.

    ::

        L = Σ_{i≠j ∈ B}, y_i≠y_j [S_ij − λ]₊ − Σ_{i≠j ∈ B}, y_i=y_j S_ij  +  the same over i ∈ B, j ∈ M

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,)
        The batch.
    vectors, vector_labels : Tensor, (m, D) and (m,)
        The bank; constants. m may be 0.
    margin : float
        Margin λ of the cosines of negative pairs.
    variant : {"paper", "xbm", "authors"}
        "xbm" is the public code of cross-batch memory: Σ (1 − s) over positives with s < 1 − 1e-5 and Σ s over
        negatives with s > λ, by B. "authors" is that of PRISM: the same, where the term of the batch is divided by the
        number of samples kept, and that of the bank by the number of all.
    keep : Tensor, (B,), bool, optional
        Which samples there are; by default all.

    Returns
    -------
    Tensor, ()

    Examples
    --------
    >>> X, y = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 1])
    >>> memory_contrastive_loss(X, y, X[:1], y[:1])  # 2 · (0.6 − 0.5); (0.6 − 0.5) − 1
    tensor(-0.7000)
    """
    B = len(labels)
    if keep is not None:
        embeddings, labels = embeddings[keep], labels[keep]
    different = ~torch.eye(len(labels), dtype=torch.bool)  # Eq. 16 means pairs: a sample is none with itself
    batch = _pair_loss(cosine_similarity(embeddings, embeddings), labels[:, None] == labels, different, margin, variant)
    S = cosine_similarity(embeddings, vectors.detach())
    bank = _pair_loss(S, labels[:, None] == vector_labels, torch.ones_like(S, dtype=torch.bool), margin, variant)
    return batch + (bank * len(labels) / max(B, 1) if variant == "authors" else bank)


def soft_triple_loss(
    embeddings: Tensor,
    labels: Tensor,
    centers: Tensor,
    scale: float = 20.0,
    gamma: float = 0.1,
    margin: float = 0.01,
    sample_weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """SoftTriple loss, Eqs. 18 and 19.

    ::

        L_i  = −log( e^{λ(S'_iy − δ)} / (e^{λ(S'_iy − δ)} + Σ_{j≠y} e^{λ S'_ij}) )
        S'_ij = Σ_h softmax_h(s_ijh / γ) s_ijh

    Errata: Eq. 18 is printed without Σ_{j≠y}; γ of Eq. 19 is 1/γ here, as in the usual implementations.

    Parameters
    ----------
    embeddings, labels : Tensor, (B, D) and (B,)
        Embeddings are normalised here.
    centers : Tensor, (C, H, D)
        Normalised here.
    scale, gamma, margin : float
        λ, γ and δ.
    sample_weights, reduction
        As in :func:`python_ref.reduction.mean_over_samples`.

    Returns
    -------
    Tensor, () or (B,)
        An empty batch gives 0, connected to the graph.

    Examples
    --------
    >>> X = torch.eye(2)
    >>> soft_triple_loss(X, torch.tensor([0, 1]), X[:, None], scale=1.0, margin=0.0)  # log(1 + e⁻¹)
    tensor(0.3133)
    """
    S = pooled_similarity(embeddings, centers, "softmax", gamma)
    own = torch.nn.functional.one_hot(labels, len(centers)).bool()
    logits = scale * torch.where(own, S - margin, S)
    losses = torch.logsumexp(logits, dim=1) - logits[own]
    return mean_over_samples(losses, sample_weights, reduction)


def soft_triple_regularizer(centers: Tensor) -> Tensor:
    """Regulariser of SoftTriple, Qian et al.: the centres of a class are drawn together.

    ::

        R = 1/(C H (H−1)) Σ_k Σ_{h<h'} √(2 − 2 cos(c_kh, c_kh'))

    Parameters
    ----------
    centers : Tensor, (C, H, D)
        Normalised here.

    Returns
    -------
    Tensor, ()
        0 for H = 1.

    Examples
    --------
    >>> soft_triple_regularizer(torch.eye(2)[None])  # one pair at distance √2, over 1 · 2 · 1
    tensor(0.7071)
    """
    C, H, _ = centers.shape
    R = centers.new_zeros(())
    for of_class in centers:
        s = cosine_similarity(of_class, of_class)
        R = R + (2 - 2 * s[torch.triu(torch.ones_like(s, dtype=torch.bool), 1)]).sqrt().sum()
    return R / max(C * H * (H - 1), 1)


def _pair_loss(S: Tensor, same: Tensor, pairs: Tensor, margin: float, variant: str) -> Tensor:
    positive, negative = same & pairs, ~same & pairs
    if variant == "paper":
        return ((S - margin).clamp(min=0) * negative).sum() - (S * positive).sum()
    attracted, repelled = positive & (S < 1 - 1e-5), negative & (margin < S)
    return (((1 - S) * attracted).sum() + (S * repelled).sum()) / max(len(S), 1)
