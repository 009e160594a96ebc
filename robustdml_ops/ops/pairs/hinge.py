"""Hinges of pairs: per anchor, over the candidates of its class and over those of the others.

    positive_a = Σ_{p∈P_a} [m⁺ − s_ap]₊      negative_a = Σ_{n∈N_a} [s_an − m⁻]₊        distance="cosine"
    positive_a = Σ_{p∈P_a} [d_ap − m⁺]₊      negative_a = Σ_{n∈N_a} [m⁻ − d_an]₊        distance="euclidean"

d = √(2 − 2s) is the distance of unit vectors. An offset can be added to each term above 0.
"""

from typing import Any, NamedTuple

from torch import Tensor

from robustdml_ops.engine.validation import check_choice, check_finite_numbers
from robustdml_ops.ops.pairs.checks import check_pairs, pair_sums
from robustdml_ops.ops.pairs.problem import PairHingeProblem, PairSets

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
    backend: str | None = None,
) -> PairHinge:
    """Both sums of hinges of every anchor; differentiable for any upstream gradient.

    Sweeps, memory, precision, backends and errors are those of :func:`~robustdml_ops.ops.pair_lse`.

    Parameters
    ----------
    embeddings, labels, candidates, candidate_labels, anchors_first, backend
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
    sets = check_pairs(embeddings, labels, candidates, candidate_labels, anchors_first)
    numbers = (positive_margin, negative_margin, positive_offset, negative_offset)
    problem = _problem(sets, numbers, distance, average=False)
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
    sets = check_pairs(embeddings, labels, candidates, candidate_labels, anchors_first)
    numbers = (positive_margin, negative_margin, positive_offset, negative_offset)
    problem = _problem(sets, numbers, distance, average)
    return pair_sums(embeddings, candidates, problem, backend, (positive_scale, negative_scale))[0]


def _problem(
    sets: PairSets, numbers: tuple[float, float, float, float], distance: str, average: bool
) -> PairHingeProblem:
    """The problem of checked arguments, its margins those of s or of −d."""
    return PairHingeProblem(sets, **hinge_numbers(*numbers, distance), average=average)


def hinge_numbers(
    positive_margin: float, negative_margin: float, positive_offset: float, negative_offset: float, distance: str
) -> dict[str, Any]:
    """Checked numbers of the hinges, the margins those of s or of −d."""
    offsets = {"positive_offset": positive_offset, "negative_offset": negative_offset}
    check_finite_numbers(positive_margin=positive_margin, negative_margin=negative_margin, **offsets)
    check_choice(DISTANCES, distance=distance)
    euclidean = distance == "euclidean"
    sign = -1 if euclidean else 1
    margins = {"positive_margin": sign * positive_margin, "negative_margin": sign * negative_margin}
    return {**margins, **offsets, "euclidean": euclidean}
