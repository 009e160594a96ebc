"""The pair log-sum-exp: per anchor, over the candidates of its class and over those of the others, mining included.

    positive_a = log(1 + Σ_{p∈P̂_a} exp(−α (s_ap − base)))      N̂_a = {n ∈ N_a : s_an + ε > min_{p∈P_a} s_ap}
    negative_a = log(1 + Σ_{n∈N̂_a} exp( β (s_an − base)))      P̂_a = {p ∈ P_a : s_ap − ε < max_{n∈N_a} s_an}

:func:`pair_lse` returns both vectors, for any use; :func:`pair_lse_sum` a weighted sum of them, for which value and
gradients take one sweep over the anchors.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.validation import check_finite_numbers, check_same_device, check_steepness, check_vector
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.checks import check_pairs, check_weights, pair_sums
from robustdml_ops.ops.pairs.problem import PairLSEProblem, PairSets


class PairLSE(NamedTuple):
    """Log-sum-exps of all anchors, (n,) each."""

    positive: Tensor
    negative: Tensor


def pair_lse(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None = None,
    candidate_labels: Tensor | None = None,
    *,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float | None = None,
    candidate_weights: Tensor | None = None,
    anchors_first: bool = False,
    backend: str | None = None,
) -> PairLSE:
    """Both log-sum-exps of every anchor; differentiable for any upstream gradient.

    Backward computes the similarities again. Matrices of size n×m exist for a chunk of anchors at a time.

    Parameters
    ----------
    embeddings, labels : Tensor
        The anchors: (n, D), float64, float32, bfloat16 or float16, any scale, and (n,) integers.
        ``robustdml_ops.ops.ABSENT``, the least int64, marks a row to leave out, such as an empty slot of a memory bank.
        A zero row has cosine 0 with everything and zero gradient.
    candidates, candidate_labels : Tensor, optional
        (m, D) and (m,); differentiable. None: the anchors themselves, each without itself. If ``candidate_labels`` is
        the same object as ``labels``, candidate i is another view of anchor i, which leaves it out; give
        ``labels.clone()`` to keep it. A compiled or exported graph keeps the choice made when it was traced.
    alpha, beta : float
        Scales of the positives and of the negatives, > 0 and at most 1/ε: 8·10⁶ in float32, 4·10¹⁵ in float64.
    base : float
        δ of the multi-similarity loss.
    epsilon : float, optional
        Mining: P̂ and N̂ above; an anchor without positives keeps no negative, and vice versa. None: all pairs.
    candidate_weights : Tensor, optional
        (m,), floating point, constants. Each log-sum-exp is multiplied by the mean weight of the candidates that stay
        in its set, as BSPML's Eq. 7 has it. At most 10¹⁸ in float32 and 10¹⁵² in float64, as all weights are.
    anchors_first : bool
        The first n of the m ≥ n candidates are the anchors or other views of them: anchor i leaves candidate i out.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    PairLSE
        positive, negative: (n,) each, in float64 if either matrix is, else float32; exactly 0 for an empty set.

    Raises
    ------
    ValueError, TypeError
        Shapes, types or devices that do not fit; on the CPU also NaN or inf, weights that are too large, and in
        backward a row so short that its gradient overflows (on a GPU the result is NaN or inf: a check would stall it).

    Notes
    -----
    Source: Barbany et al. 2024, Eq. 5; mining: Zhang et al. 2023, Eqs. 4 and 5. Similarities and sums are in float32 at
    least. On a GPU both matrices enter the products in the wider of their types, half precision and all under autocast
    as bfloat16.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import pair_lse
    >>> X, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([0, 0, 1])
    >>> pair_lse(X, y, alpha=1.0, beta=1.0, base=0.0)  # log(1 + 1), log(1 + 1), 0; log(1 + 1), log(1 + e), log(2 + e)
    PairLSE(positive=tensor([0.6931, 0.6931, 0.0000]), negative=tensor([0.6931, 1.3133, 1.5514]))
    """
    sets = check_pairs(embeddings, labels, candidates, candidate_labels, anchors_first)
    problem = _problem(embeddings, candidates, sets, alpha, beta, base, epsilon, candidate_weights)
    _, positive, negative, _ = pair_sums(embeddings, candidates, problem, backend)
    return PairLSE(positive, negative)


def pair_lse_sum(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None,
    candidate_labels: Tensor | None,
    positive_scale: Tensor,
    negative_scale: Tensor,
    *,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float | None = None,
    candidate_weights: Tensor | None = None,
    anchors_first: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Σ_a positive_scale_a·positive_a + negative_scale_a·negative_a, with all gradients, in one sweep.

    A chunk of anchors is differentiated before it leaves the cache: 6·n·m·D flops for the value and both gradients,
    where :func:`pair_lse` takes 8. Precision and errors are those of :func:`pair_lse`.

    Parameters
    ----------
    positive_scale, negative_scale : Tensor
        () or (n,) each, constants. The other arguments are those of :func:`pair_lse`.

    Returns
    -------
    Tensor
        (), in the type of :func:`pair_lse`. Without pairs: 0, with zero gradients.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import pair_lse_sum
    >>> X, y, half = torch.eye(2), torch.tensor([0, 1]), torch.tensor(0.5)
    >>> pair_lse_sum(X, y, None, None, half, half, alpha=1.0, beta=1.0, base=0.0)  # 2 · ½ log(1 + 1)
    tensor(0.6931)
    """
    sets = check_pairs(embeddings, labels, candidates, candidate_labels, anchors_first)
    problem = _problem(embeddings, candidates, sets, alpha, beta, base, epsilon, candidate_weights)
    return pair_sums(embeddings, candidates, problem, backend, (positive_scale, negative_scale))[0]


def _problem(
    embeddings: Tensor,
    candidates: Tensor | None,
    sets: PairSets,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float | None,
    candidate_weights: Tensor | None,
) -> PairLSEProblem:
    """The problem of checked arguments."""
    check_lse_numbers(pair_dtype(embeddings, candidates), alpha, beta, base, epsilon)
    if candidate_weights is not None:
        check_vector("candidate_weights", candidate_weights, len(sets.candidate_labels))
        check_same_device(embeddings=embeddings, candidate_weights=candidate_weights)
        if candidate_weights.requires_grad:
            raise ValueError("candidate_weights are constants of this op: pass candidate_weights.detach()")
        candidate_weights = candidate_weights.to(pair_dtype(embeddings, candidates)).contiguous()
        check_weights(candidate_weights=candidate_weights)
    return PairLSEProblem(sets, alpha, beta, base, epsilon, candidate_weights)


def check_lse_numbers(dtype: torch.dtype, alpha: float, beta: float, base: float, epsilon: float | None) -> None:
    """Numbers of the log-sum-exps that ``dtype`` serves."""
    check_finite_numbers(base=base, epsilon=0.0 if epsilon is None else epsilon)
    check_steepness(dtype, alpha=alpha, beta=beta)
