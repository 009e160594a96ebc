"""Sums over a miner's triplets (anchors, positives, negatives) or pairs (anchors, positives, anchors, negatives).

Where they are a fair part of all pairs, one product gives all cosines; where they are few, their rows are gathered.
Their number is read from the device: on a GPU that waits for the stream, as the miner did.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess
from robustdml_ops.engine.sums import add_rows
from robustdml_ops.engine.validation import INTEGERS, check_finite_embeddings, require
from robustdml_ops.ops import PairHinge, PairLSE, pair_lse, similarity
from robustdml_ops.ops.pairs.autograd import pair_dtype

_PRODUCT = 64  # all pairs for each that is listed, up to which a product takes less time than gathering
_MASK = 8  # the same, up to which a pass over the whole matrix takes less time than picking from it
_GATHERED = 1 << 16  # pairs at a time whose rows are gathered
_NEAR = 2.0**-10  # of 1 − s, from where on a distance is taken from the difference of the rows


class ListedPairs(NamedTuple):
    """Positive and negative pairs, each of two vectors of places: in the batch, and among its candidates."""

    positive_anchors: Tensor
    positives: Tensor
    negative_anchors: Tensor
    negatives: Tensor


def listed_pairs(indices_tuple: object, n: int, m: int) -> ListedPairs:
    """Pairs of a miner's tuple; a triplet is two of them."""
    vectors = check_indices(indices_tuple, n, m)
    if len(vectors) == 3:
        anchors, positives, negatives = vectors
        return ListedPairs(anchors, positives, anchors, negatives)
    return ListedPairs(*vectors)


def miner_weights(
    indices_tuple: object, n: int, like: Tensor, anchors_only: bool = False, shards: OneProcess = ONE_PROCESS
) -> Tensor:
    """How often a miner chose each sample, divided by the largest count, (n,) like ``like``; 1 if it found nothing."""
    vectors = check_indices(indices_tuple, n, n)
    if anchors_only:
        vectors = vectors[::2] if len(vectors) == 4 else vectors[:1]
    if n == 0:
        return like.new_ones(0)
    counts = shards.sum_over_processes(torch.bincount(torch.cat(vectors).to(like.device), minlength=n)).to(like.dtype)
    most = counts.max()
    return torch.where(most > 0, counts / most.clamp(min=1), 1)


def check_indices(indices_tuple: object, n: int, m: int) -> list[Tensor]:
    """Vectors of a miner's tuple, int64, whose places are those of n anchors and m candidates."""
    if not isinstance(indices_tuple, (tuple, list)) or len(indices_tuple) not in (3, 4):
        raise TypeError(
            "indices_tuple must be a miner's triplets (anchors, positives, negatives) or pairs (anchors, positives, "
            f"anchors, negatives), got {type(indices_tuple).__name__}; weights of samples are sample_weights="
        )
    vectors: list[Tensor] = []
    sizes = (n, m, m) if len(indices_tuple) == 3 else (n, m, n, m)
    for k, (vector, size) in enumerate(zip(indices_tuple, sizes, strict=True)):
        if not isinstance(vector, Tensor) or vector.dim() != 1 or (len(vector) and vector.dtype not in INTEGERS):
            found = f"{tuple(vector.shape)} of {vector.dtype}" if isinstance(vector, Tensor) else type(vector).__name__
            raise ValueError(f"indices_tuple[{k}] must be a vector of integers, got {found}")
        if len(vector) and vector.device.type == "cpu":
            least, largest = map(int, vector.aminmax())
            if least < 0 or largest >= size:
                raise IndexError(f"indices_tuple[{k}] holds {least if least < 0 else largest}, outside 0 … {size - 1}")
        vectors.append(vector.long())
    if len(vectors[0]) != len(vectors[1]) or len(vectors[-2]) != len(vectors[-1]):
        raise ValueError(f"indices_tuple must hold pairs of equal lengths, got {[len(vector) for vector in vectors]}")
    return vectors


class Cosines:
    """Cosines of the pairs of a list: the whole matrix of anchors and candidates, or those that are asked for."""

    def __init__(self, embeddings: Tensor, candidates: Tensor | None, listed: ListedPairs) -> None:
        self.listed = listed
        self.X = embeddings
        self.Y = embeddings if candidates is None else candidates
        self.dtype = pair_dtype(embeddings, candidates)
        self.size = len(self.X) * len(self.Y)
        self.matrix: Tensor | None = None
        if self.size <= _PRODUCT * (len(listed.positives) + len(listed.negatives)):
            self.matrix = similarity(self.X, self.Y, dtype=self.dtype)

    def of(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Cosines of the pairs, in the compute type."""
        if self.matrix is not None:
            return self.matrix[rows, columns]
        if len(rows) == 0:
            return self.X[:0].to(self.dtype).sum(1)  # in the graph
        check_finite_embeddings(self.X)
        check_finite_embeddings(self.Y, "ref_emb")
        # Gathered rows are of size pairs × D: each chunk of them lives once forward and once more backward.
        chunks = zip(torch.split(rows, _GATHERED), torch.split(columns, _GATHERED), strict=True)
        return torch.cat([checkpoint(self._gathered, self.X, self.Y, *chunk, use_reentrant=False) for chunk in chunks])

    def _gathered(self, X: Tensor, Y: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        with torch.autocast(X.device.type, enabled=False):
            return (unit_rows(X[rows].to(self.dtype)) * unit_rows(Y[columns].to(self.dtype))).sum(1)

    def distances(self, rows: Tensor, columns: Tensor) -> Tensor:
        """√(2 − 2s), and the length of the difference where 2 − 2s would be rounding; 0 has no gradient."""
        s = self.of(rows, columns)
        near = (1 - s < _NEAR).nonzero().squeeze(1)
        apart = unit_rows(self.X[rows[near]].to(s.dtype)) - unit_rows(self.Y[columns[near]].to(s.dtype))
        squared = (2 - 2 * s).index_put((near,), (apart * apart).sum(1))
        equal = squared <= 0
        return torch.where(equal, 0.0, squared.masked_fill(equal, 1).sqrt())


def listed_hinge(
    cosines: Cosines,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_offset: float,
    negative_offset: float,
    distance: str,
) -> PairHinge:
    """``pair_hinge`` over the pairs of a list, each as often as it is there."""
    sums, counts, listed = [], [], cosines.listed
    sides = ((listed[:2], 1, positive_margin, positive_offset), (listed[2:], -1, negative_margin, negative_offset))
    for (rows, columns), sign, margin, offset in sides:
        euclidean = distance == "euclidean"
        measured = cosines.distances(rows, columns) if euclidean else -cosines.of(rows, columns)
        hinge = sign * (measured - (margin if euclidean else -margin))
        above = hinge > 0
        new, n = hinge.new_zeros, len(cosines.X)
        sums.append(add_rows(new(n), rows, torch.where(above, hinge + offset, 0.0)))
        counts.append(add_rows(new(n, dtype=torch.int64), rows, above.long()))
    return PairHinge(*sums, *counts)


def listed_lse(cosines: Cosines, *, alpha: float, beta: float, base: float, epsilon: float | None) -> PairLSE:
    """``pair_lse`` over the pairs of a list, each pair once; ``epsilon`` mines among them."""
    positive, negative = sides_of(cosines)
    if epsilon is not None:
        least, largest = -positive.largest(-positive.s.detach()), negative.largest(negative.s.detach())
        positive = positive.keep(positive.s - epsilon < positive.of_anchor(largest))
        negative = negative.keep(negative.s + epsilon > negative.of_anchor(least))
    return PairLSE(
        positive.log_one_plus(alpha * (base - positive.s)), negative.log_one_plus(beta * (negative.s - base))
    )


class SignedCosines(NamedTuple):
    """Cosines of the pairs of one sign, each pair once: a matrix with a mask, or a list with the anchor of each."""

    s: Tensor  # (n, m) or (k,)
    where: Tensor  # (n, m) bool, or (k,) int64
    n: int

    def of_anchor(self, values: Tensor) -> Tensor:
        """For each cosine the value (n,) of its anchor."""
        return values[:, None] if self.s.dim() == 2 else values[self.where]

    def keep(self, stays: Tensor) -> "SignedCosines":
        """The pairs that stay."""
        if self.s.dim() == 2:
            return self._replace(where=self.where & stays)
        return self._replace(s=self.s[stays], where=self.where[stays])

    def largest(self, values: Tensor) -> Tensor:
        """Largest of the values of each anchor's pairs, (n,); −inf for one without."""
        none = values.new_full((self.n,), -torch.inf)
        if values.numel() == 0:  # an empty batch, or no candidates: there is no maximum over nothing
            return none
        if self.s.dim() == 2:
            return values.masked_fill(~self.where, -torch.inf).amax(1)
        return none.scatter_reduce(0, self.where, values, "amax")

    def total(self, values: Tensor) -> Tensor:
        """Sum of the values of each anchor's pairs, (n,)."""
        if self.s.dim() == 2:
            return values.masked_fill(~self.where, 0).sum(1)
        return add_rows(values.new_zeros(self.n), self.where, values)

    def log_sum_exp(self) -> Tensor:
        """Log Σ e^s of each anchor, (n,); the least number for one without pairs."""
        least = torch.finfo(self.s.dtype).min
        shift = self.largest(self.s.detach()).clamp(min=least)
        exponents = self.s if self.s.dim() == 1 else self.s.masked_fill(~self.where, -torch.inf)
        sums = self._replace(s=exponents).total((exponents - self.of_anchor(shift)).exp())
        return torch.where(sums == 0, least, shift + sums.masked_fill(sums == 0, 1).log())

    def log_one_plus(self, exponents: Tensor) -> Tensor:
        """log(1 + Σ exp) of each anchor, (n,); 0 for one without."""
        return -torch.nn.functional.logsigmoid(-self._replace(s=exponents).log_sum_exp())


def sides_of(cosines: Cosines) -> tuple[SignedCosines, SignedCosines]:
    """Positive and negative pairs, each once: in the peer's code they are the entries of two masks."""
    n, m, listed = len(cosines.X), len(cosines.Y), cosines.listed
    if cosines.matrix is None:
        places = [torch.unique(rows * m + columns) for rows, columns in (listed[:2], listed[2:])]
        both = places[0][torch.isin(*places, assume_unique=True)]
    else:
        none = cosines.matrix.new_zeros(n * m, dtype=torch.bool)
        masks = [none.index_fill(0, rows * m + columns, True) for rows, columns in (listed[:2], listed[2:])]
        both = (masks[0] & masks[1]).nonzero().squeeze(1)
    require(
        torch.tensor(len(both) == 0, device="cpu"),
        lambda: f"indices_tuple has pair {divmod(int(both[0]), m)} as positive and as negative",
    )
    if cosines.matrix is None:
        positive, negative = (SignedCosines(cosines.of(each // m, each % m), each // m, n) for each in places)
    else:
        positive, negative = (_of_matrix(cosines.matrix, mask.view(n, m)) for mask in masks)
    return positive, negative


def _of_matrix(S: Tensor, mask: Tensor) -> SignedCosines:
    """The whole matrix where most of it counts, else the cosines that do."""
    if mask.numel() <= _MASK * int(mask.sum()):
        return SignedCosines(S, mask, len(S))
    rows, columns = mask.nonzero(as_tuple=True)
    return SignedCosines(S[rows, columns], rows, len(S))


def listed_supcon(cosines: Cosines, scale: float, form: str) -> Tensor:
    """Losses (B,) of the samples, each pair once."""
    positive, negative = (side._replace(s=scale * side.s) for side in sides_of(cosines))
    number = positive.total(torch.ones_like(positive.s))
    of_positives, of_negatives = positive.log_sum_exp(), negative.log_sum_exp()
    lse = torch.logaddexp(of_positives, of_negatives)
    target = positive.total(positive.s) / number.clamp(min=1) if form == "outside" else of_positives - number.log()
    return torch.where(number > 0, lse - target, 0)


def listed_nt_xent(cosines: Cosines, scale: float) -> Tensor:
    """Losses (k,) of the positive pairs, each pair as often as it is listed."""
    anchors, positives, negative_anchors, negatives = cosines.listed
    negative = SignedCosines(scale * cosines.of(negative_anchors, negatives), negative_anchors, len(cosines.X))
    z = scale * cosines.of(anchors, positives)
    return -torch.nn.functional.logsigmoid(z - negative.log_sum_exp()[anchors])


def labelled_nt_xent(
    pairs: tuple[Tensor, Tensor, Tensor | None, Tensor | None], scale: float, backend: str | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Losses (k,) of the positive pairs of labels, and their places; memory goes by their number."""
    embeddings, labels, candidates, candidate_labels = pairs
    rows, columns = positives_of(labels, candidate_labels)
    none = rows[:0]
    z = scale * Cosines(embeddings, candidates, ListedPairs(rows, columns, none, none)).of(rows, columns)
    # log(1 + Σ e^{scale(s + 1)}) is at least log 2 where there is a negative, so the 1 can be taken away again.
    with_one = pair_lse(*pairs, alpha=1.0, beta=scale, base=-1.0, backend=backend).negative
    some = with_one > 0
    lse = with_one + torch.log(-torch.expm1(-with_one.masked_fill(~some, 1))) - scale
    lse = lse.masked_fill(~some, torch.finfo(lse.dtype).min)
    return -torch.nn.functional.logsigmoid(z - lse[rows]), (rows, columns)


def positives_of(labels: Tensor, candidate_labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Places of all positive pairs, (k,) each; their number is read from the device."""
    itself = candidate_labels is None or candidate_labels is labels
    others = labels if candidate_labels is None else candidate_labels
    ordered, order = torch.sort(others, stable=True)
    first = torch.searchsorted(ordered, labels)
    number = (torch.searchsorted(ordered, labels, right=True) - first).masked_fill(labels == ABSENT, 0)
    rows = torch.arange(len(labels), device=labels.device).repeat_interleave(number)
    within = torch.arange(len(rows), device=labels.device) - (number.cumsum(0) - number)[rows]
    columns = order[first[rows] + within]
    wanted = (rows != columns) | (not itself)
    return rows[wanted], columns[wanted]
