"""Sums over pairs that are listed one by one, as a miner finds them: what the fused sums are over sets of labels."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from robustdml_ops.losses.miner_indices import ListedPairs
from robustdml_ops.ops import PairHinge, PairLSE, similarity
from robustdml_ops.pairs.autograd import pair_dtype
from robustdml_ops.rows.eager import unit_rows
from robustdml_ops.validation import check_finite_embeddings, require

# A product of whole matrices takes a pair in a hundredth of the time that gathering its two rows does.
_PRODUCT_PAIRS = 64
_GATHERED_PAIRS = 1 << 16  # at a time
_NEAR = 2.0**-10  # of 1 − s, from where on a distance is taken from the difference of the rows


def listed_hinge(
    embeddings: Tensor,
    candidates: Tensor | None,
    listed: ListedPairs,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_offset: float = 0.0,
    negative_offset: float = 0.0,
    distance: str = "cosine",
) -> PairHinge:
    """Sums of hinges of every anchor over the pairs of a list, each as often as it is there.

    Parameters and results are those of :func:`robustdml_ops.ops.pair_hinge`, but for the labels.
    """
    sums, counts = [], []
    sides = ((listed[:2], 1, positive_margin, positive_offset), (listed[2:], -1, negative_margin, negative_offset))
    for (rows, columns), sign, margin, offset in sides:
        s = _similarities(embeddings, candidates, rows, columns)
        if distance == "euclidean":
            hinge = sign * (_distances(s, embeddings, candidates, rows, columns) - margin)
        else:
            hinge = sign * (margin - s)
        above = hinge > 0
        zeros = s.new_zeros(len(embeddings))
        sums.append(zeros.index_add(0, rows, torch.where(above, hinge + offset, 0.0)))
        counts.append(torch.zeros_like(zeros, dtype=torch.int64).index_add(0, rows, above.long()))
    return PairHinge(*sums, *counts)


def listed_lse(
    embeddings: Tensor,
    candidates: Tensor | None,
    listed: ListedPairs,
    *,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float | None = None,
) -> PairLSE:
    """Both log-sum-exps of every anchor over the pairs of a list, each pair once.

    Parameters and results are those of :func:`robustdml_ops.ops.pair_lse`, but for the labels. ``epsilon`` mines among
    the pairs of the list.
    """
    n, m = len(embeddings), len(embeddings if candidates is None else candidates)
    p_places, n_places = _once(*listed[:2], n, m), _once(*listed[2:], n, m)
    both = torch.isin(p_places, n_places, assume_unique=True)
    require(
        ~both.any(), lambda: f"indices_tuple has pair {divmod(int(p_places[both][0]), m)} as positive and as negative"
    )
    (p_rows, p_columns), (n_rows, n_columns) = ((places // m, places % m) for places in (p_places, n_places))
    positive = _similarities(embeddings, candidates, p_rows, p_columns)
    negative = _similarities(embeddings, candidates, n_rows, n_columns)
    if epsilon is not None:
        least = _extremes(-positive.detach(), p_rows, n)  # of −s: the least similar positive
        largest = _extremes(negative.detach(), n_rows, n)
        p_stays, n_stays = positive - epsilon < largest[p_rows], negative + epsilon > -least[n_rows]
        positive, p_rows = positive[p_stays], p_rows[p_stays]
        negative, n_rows = negative[n_stays], n_rows[n_stays]
    positive_exponents, negative_exponents = alpha * (base - positive), beta * (negative - base)
    return PairLSE(_log_one_plus(positive_exponents, p_rows, n), _log_one_plus(negative_exponents, n_rows, n))


def _similarities(X: Tensor, candidates: Tensor | None, rows: Tensor, columns: Tensor) -> Tensor:
    """Cosines of the pairs, in the compute type; memory goes by their number."""
    Y = X if candidates is None else candidates
    dtype = pair_dtype(X, candidates)
    if len(X) * len(Y) <= _PRODUCT_PAIRS * len(rows):
        return similarity(X, Y, dtype=dtype)[rows, columns]
    check_finite_embeddings(X)
    check_finite_embeddings(Y, "ref_emb")
    # Gathered rows are of size pairs × D: each chunk of them lives once forward and once more backward.
    return torch.cat(
        [
            checkpoint(_gathered, X, Y, rows[first:last], columns[first:last], dtype, use_reentrant=False)
            for first in range(0, max(1, len(rows)), _GATHERED_PAIRS)
            for last in (first + _GATHERED_PAIRS,)
        ]
    )


def _gathered(X: Tensor, Y: Tensor, rows: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    with torch.autocast(X.device.type, enabled=False):
        return (unit_rows(X[rows].to(dtype)) * unit_rows(Y[columns].to(dtype))).sum(1)


def _distances(s: Tensor, X: Tensor, candidates: Tensor | None, rows: Tensor, columns: Tensor) -> Tensor:
    """√(2 − 2s), and the length of the difference where 2 − 2s would be rounding; 0 has no gradient."""
    Y = X if candidates is None else candidates
    near = (1 - s < _NEAR).nonzero().squeeze(1)
    apart = unit_rows(X[rows[near]].to(s.dtype)) - unit_rows(Y[columns[near]].to(s.dtype))
    squared = (2 - 2 * s).index_put((near,), (apart * apart).sum(1))
    equal = squared <= 0
    return torch.where(equal, 0.0, squared.masked_fill(equal, 1).sqrt())


def _once(rows: Tensor, columns: Tensor, n: int, m: int) -> Tensor:
    """Places row · m + column, each once: in the peer's code the pairs are the entries of a mask."""
    places = rows * m + columns
    if n * m > _PRODUCT_PAIRS * len(places):
        return places.unique()  # type: ignore[no-any-return,no-untyped-call]
    mask = torch.zeros(n * m, dtype=torch.bool, device=rows.device)
    mask[places] = True
    return mask.nonzero().squeeze(1)


def _extremes(values: Tensor, rows: Tensor, n: int) -> Tensor:
    """Largest value of each row (n,), −inf for one without."""
    return values.new_full((n,), -torch.inf).scatter_reduce(0, rows, values, "amax")


def _log_one_plus(exponents: Tensor, rows: Tensor, n: int) -> Tensor:
    """log(1 + Σ exp) of each row, (n,); 0 for one without."""
    shift = exponents.new_zeros(n).scatter_reduce(0, rows, exponents.detach(), "amax")
    sums = torch.zeros_like(shift).index_add(0, rows, (exponents - shift[rows]).exp())
    return shift + (torch.expm1(-shift) + sums).log1p()
