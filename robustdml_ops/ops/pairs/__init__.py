"""Sums over pairs of samples: per anchor, over the candidates of its class P and over those of the others N.

    positive_a = log(1 + Σ_{p∈P̂_a} exp(−α (s_ap − base)))      P̂_a = {p ∈ P_a : s_ap − ε < max_{n∈N_a} s_an}    pair_lse
    negative_a = log(1 + Σ_{n∈N̂_a} exp( β (s_an − base)))      N̂_a = {n ∈ N_a : s_an + ε > min_{p∈P_a} s_ap}

    positive_a = Σ_{p∈P_a} [m⁺ − s_ap]₊      negative_a = Σ_{n∈N_a} [s_an − m⁻]₊        pair_hinge, distance="cosine"
    positive_a = Σ_{p∈P_a} [d_ap − m⁺]₊      negative_a = Σ_{n∈N_a} [m⁻ − d_an]₊        distance="euclidean"

d = √(2 − 2s) is the distance of unit vectors. Softmax and logistic losses of an anchor over its candidates, those of
:func:`pair_contrast`, are in :class:`~robustdml_ops.ops.pairs.backends.ContrastOptions`.

Each op returns the vectors, for any use; with scales, or as ``…_sum``, the weighted sum of all anchors, for which value
and gradients take one sweep.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.validation import check_choice, check_finite_numbers, check_steepness
from robustdml_ops.ops.pairs.arguments import pair_problem, pair_sets
from robustdml_ops.ops.pairs.autograd import check_scales, pair_dtype, pair_sums
from robustdml_ops.ops.pairs.backends import ContrastOptions, HingeOptions, LSEOptions, PairProblem


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
    sample_ids: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    hardest: Tensor | None = None,
    backend: str | None = None,
) -> PairLSE:
    """Both log-sum-exps of every anchor; differentiable for any upstream gradient.

    Backward computes the similarities again. Matrices of size n×m exist for a chunk of anchors at a time.

    Parameters
    ----------
    embeddings, labels : Tensor
        The anchors: (n, D), float64, float32, bfloat16 or float16, any scale, and (n,) integers, or (n, K) several of
        each, of which one in common makes a positive pair. ``robustdml_ops.ops.ABSENT``, the least int64, fills rows of
        labels up, and marks a row to leave out, such as an empty slot of a memory bank. A zero row has cosine 0 with
        everything and zero gradient.
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
    sample_ids, candidate_ids : Tensor, optional
        (n,) and (m,) integers: a candidate with the id of the anchor is in neither of its sets; negative: no id. The
        first are those of both sides where the candidates are the anchors.
    hardest : Tensor, optional
        (2, n) in the type of the results, filled with ∞ and −∞: takes each anchor's least cosine with a positive and
        its largest with a negative, before any mining. In eager mode only.
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
    options = lse_options(pair_dtype(embeddings, candidates), alpha, beta, base, epsilon)
    sets = pair_sets(embeddings, labels, candidates, candidate_labels, anchors_first, (sample_ids, candidate_ids))
    problem = pair_problem(options, sets, embeddings, candidates, candidate_weights, hardest)
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
    sample_ids: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    hardest: Tensor | None = None,
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
    options = lse_options(pair_dtype(embeddings, candidates), alpha, beta, base, epsilon)
    sets = pair_sets(embeddings, labels, candidates, candidate_labels, anchors_first, (sample_ids, candidate_ids))
    problem = pair_problem(options, sets, embeddings, candidates, candidate_weights, hardest)
    scales = check_scales(embeddings, candidates, positive_scale, negative_scale)
    return pair_sums(embeddings, candidates, problem, backend, scales)[0]


def lse_options(dtype: torch.dtype, alpha: float, beta: float, base: float, epsilon: float | None) -> LSEOptions:
    """Checked numbers of the log-sum-exps, which ``dtype`` serves."""
    check_finite_numbers(base=base, epsilon=0.0 if epsilon is None else epsilon)
    check_steepness(dtype, alpha=alpha, beta=beta)
    return LSEOptions(alpha, beta, base, epsilon)


# A hinge compares its margins with s, or ‖x̂ − ŷ‖ = √(2 − 2s).
DISTANCES = ("cosine", "euclidean")


class PairHinge(NamedTuple):
    """Sums of hinges of all anchors, and how many terms of each are above 0: (n,) each, the counts int64."""

    positive: Tensor
    negative: Tensor
    positive_count: Tensor
    negative_count: Tensor


def pair_hinge(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None = None,
    candidate_labels: Tensor | None = None,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_offset: float = 0.0,
    negative_offset: float = 0.0,
    distance: str = "cosine",
    anchors_first: bool = False,
    sample_ids: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    hardest: Tensor | None = None,
    backend: str | None = None,
) -> PairHinge:
    """Both sums of hinges of every anchor; differentiable for any upstream gradient.

    Sweeps, memory, precision, backends and errors are those of :func:`~robustdml_ops.ops.pair_lse`.

    Parameters
    ----------
    embeddings, labels, candidates, candidate_labels, anchors_first, sample_ids, candidate_ids, hardest, backend
        Anchors (n, D), (n,) and candidates (m, D), (m,), as in :func:`~robustdml_ops.ops.pair_lse`.
    positive_margin, negative_margin : float
        m⁺ and m⁻. A positive margin above 1 (cosine) is above every similarity, so all positives count.
    positive_offset, negative_offset : float
        Added to each term above 0. So margin 2 and offset −2 make Σ −s over all positives, and a negative offset of m⁻
        makes Σ s over the negatives above m⁻.
    distance : {"cosine", "euclidean"}
        What the margins are compared with, see above.

    Returns
    -------
    PairHinge
        positive, negative: (n,) each, in float64 if either matrix is, else float32. positive_count, negative_count:
        (n,) int64, not differentiable.

    Notes
    -----
    A Euclidean distance d is computed from the cosine; below 1/32 (float64: 1/256, products of bfloat16 or TF32: 1/8)
    from the difference of the rows, in double. Vectors that are parallel but for rounding have distance exactly 0 and
    no gradient. A batch in which nearly all pairs are that near takes several times as long.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import pair_hinge
    >>> X, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])
    >>> pair_hinge(X, y, positive_margin=0.9, negative_margin=0.7).negative
    tensor([0.0000, 0.1000, 0.1000])
    """
    numbers = (positive_margin, negative_margin, positive_offset, negative_offset)
    options = hinge_options(*numbers, distance)
    sets = pair_sets(embeddings, labels, candidates, candidate_labels, anchors_first, (sample_ids, candidate_ids))
    problem = PairProblem(options, sets, hardest=hardest)
    _, positive, negative, counts = pair_sums(embeddings, candidates, problem, backend)
    return PairHinge(positive, negative, counts[0], counts[1])


def pair_hinge_sum(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None,
    candidate_labels: Tensor | None,
    positive_scale: Tensor,
    negative_scale: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_offset: float = 0.0,
    negative_offset: float = 0.0,
    distance: str = "cosine",
    average: bool = False,
    anchors_first: bool = False,
    sample_ids: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    hardest: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Σ_a positive_scale_a·positive_a + negative_scale_a·negative_a, with all gradients, in one sweep.

    A chunk of anchors is differentiated before it leaves the cache: 6·n·m·D flops for the value and both gradients,
    where :func:`pair_hinge` takes 8. Precision and errors are those of :func:`~robustdml_ops.ops.pair_lse`.

    Parameters
    ----------
    positive_scale, negative_scale : Tensor
        () or (n,) each, constants. The arguments that are not listed are those of :func:`pair_hinge`.
    average : bool
        Divide each side by the number of its terms above 0, of all anchors together.

    Returns
    -------
    Tensor
        (), in the type of :func:`pair_hinge`. Without pairs: 0, with zero gradients.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import pair_hinge_sum
    >>> X, y, one = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 1]), torch.tensor(1.0)
    >>> pair_hinge_sum(X, y, None, None, one, one, positive_margin=1.0, negative_margin=0.5)
    tensor(0.2000)
    """
    numbers = (positive_margin, negative_margin, positive_offset, negative_offset)
    options = hinge_options(*numbers, distance, average)
    sets = pair_sets(embeddings, labels, candidates, candidate_labels, anchors_first, (sample_ids, candidate_ids))
    problem = PairProblem(options, sets, hardest=hardest)
    scales = check_scales(embeddings, candidates, positive_scale, negative_scale)
    return pair_sums(embeddings, candidates, problem, backend, scales)[0]


def hinge_options(
    positive_margin: float,
    negative_margin: float,
    positive_offset: float,
    negative_offset: float,
    distance: str,
    average: bool = False,
) -> HingeOptions:
    """Checked numbers of the hinges, the margins those of s or of −d."""
    offsets = {"positive_offset": positive_offset, "negative_offset": negative_offset}
    check_finite_numbers(positive_margin=positive_margin, negative_margin=negative_margin, **offsets)
    check_choice(DISTANCES, distance=distance)
    sign = -1 if distance == "euclidean" else 1
    return HingeOptions(sign * positive_margin, sign * negative_margin, **offsets, euclidean=sign < 0, average=average)


class PairContrast(NamedTuple):
    """Losses and log-sum-exps of all anchors; with scales the weighted sum of the losses instead. The rest is None."""

    total: Tensor  # ()
    loss: Tensor  # (n,)
    lse: Tensor  # (n,)
    above: Tensor  # () int64: losses above 0


def pair_contrast(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None = None,
    candidate_labels: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    coefficients: Tensor,
    form: str,
    anchors_first: bool = False,
    sample_ids: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    ids_keep_positives: bool = False,
    hardest: Tensor | None = None,
    backend: str | None = None,
) -> PairContrast:
    """Losses and log-sum-exps, differentiable for any upstream gradient: backward makes the similarities again.

    With constant scales, () or (n,): Σ_a scale_a · loss_a with all gradients, in one sweep of 6·n·m·D flops.
    """
    options = ContrastOptions(form)
    ids = (sample_ids, candidate_ids)
    sets = pair_sets(embeddings, labels, candidates, candidate_labels, anchors_first, ids, ids_keep_positives)
    problem = PairProblem(options, sets, coefficients=coefficients, hardest=hardest)
    scales = None if scale is None else check_scales(embeddings, candidates, scale, scale.new_zeros(()))
    return PairContrast(*pair_sums(embeddings, candidates, problem, backend, scales))


def coefficients_of(
    embeddings: Tensor, candidates: Tensor | None, scale: float | Tensor, bias: float | Tensor = 0.0
) -> Tensor:
    """Scale and bias of the logits, (2,) in the compute type; differentiable in tensors ()."""
    dtype = pair_dtype(embeddings, candidates)
    both = (one if isinstance(one, Tensor) else embeddings.new_full((), one, dtype=dtype) for one in (scale, bias))
    return torch.stack([one.to(embeddings.device, dtype) for one in both])
