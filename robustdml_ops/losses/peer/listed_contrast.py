"""SupCon and NT-Xent over the pairs that a miner found, and the positive pairs of labels one by one."""

import torch
from torch import Tensor

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.losses.peer.listed_pairs import Cosines, ListedPairs, SignedCosines, sides_of
from robustdml_ops.ops import pair_lse


def listed_supcon(
    embeddings: Tensor, candidates: Tensor | None, listed: ListedPairs, scale: float, form: str
) -> Tensor:
    """Losses (B,) of the samples, each pair once."""
    both = sides_of(Cosines(embeddings, candidates, listed), listed)
    positive, negative = (side._replace(s=scale * side.s) for side in both)
    number = positive.total(torch.ones_like(positive.s))
    of_positives, of_negatives = positive.log_sum_exp(), negative.log_sum_exp()
    lse = torch.logaddexp(of_positives, of_negatives)
    target = positive.total(positive.s) / number.clamp(min=1) if form == "outside" else of_positives - number.log()
    return torch.where(number > 0, lse - target, 0)


def listed_nt_xent(embeddings: Tensor, candidates: Tensor | None, listed: ListedPairs, scale: float) -> Tensor:
    """Losses (k,) of the positive pairs, each pair as often as it is listed."""
    cosines = Cosines(embeddings, candidates, listed)
    negative = SignedCosines(
        scale * cosines.of(listed.negative_anchors, listed.negatives), listed.negative_anchors, len(embeddings)
    )
    z = scale * cosines.of(listed.positive_anchors, listed.positives)
    return -torch.nn.functional.logsigmoid(z - negative.log_sum_exp()[listed.positive_anchors])


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
    kept = (rows != columns) | (not itself)
    return rows[kept], columns[kept]
