"""The sets of an anchor's candidates: positives and negatives, from one label a sample or several, and from ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.engine.op_arguments import op_options
from robustdml_ops.engine.similarity_chunks import chunk_rows


class SetsKind(NamedTuple):
    """What kernels know of sets at compile time."""

    itself: bool  # candidate i is anchor i
    labels: int = 1  # of a sample
    ids: int = 0  # of a sample
    keeps_positives: bool = False  # ids take negatives out alone

    def constants(self) -> dict[str, Any]:
        """Arguments of Triton's kernels."""
        return dict(zip(("ITSELF", "LABELS", "IDS", "KEEPS_POSITIVES"), self, strict=True))


@op_options
@dataclass(frozen=True)
class PairSets:
    """Positives P_i of anchor i: candidates that share a label; negatives N_i: the others. ``ABSENT`` is in no set.

    A candidate that shares an id with the anchor is in neither set.
    """

    labels: Tensor  # (n,) int64, contiguous; or (n, K), with ABSENT where an anchor has fewer
    other_labels: Tensor | None  # (m,) or (m, K) int64, contiguous, of the candidates; None: those of the anchors
    itself: bool  # candidate i is anchor i, for all n anchors; m ≥ n then
    ids: Tensor | None = None  # (n, I) int64, contiguous: equal to those in the same column; negative: none
    other_ids: Tensor | None = None  # (m, I) of the candidates; None: those of the anchors
    keeps_positives: bool = False  # ids take negatives out alone

    @classmethod
    def of(
        cls,
        labels: Tensor,
        candidate_labels: Tensor | None,
        anchors_first: bool = False,
        ids: tuple[Tensor | None, Tensor | None] = (None, None),
        keeps_positives: bool = False,
    ) -> "PairSets":
        """From labels int64, and ids (n, I) and (m, I).

        No labels of candidates: candidate i is anchor i; with ``anchors_first`` this holds for i < n.
        """
        itself = candidate_labels is None or anchors_first
        if candidate_labels is not None and (labels.dim(), labels.shape[1:]) != (
            candidate_labels.dim(),
            candidate_labels.shape[1:],
        ):
            labels, candidate_labels = _of_one_width(labels, candidate_labels)
        if labels.shape[1:] == (1,):
            labels, candidate_labels = labels[:, 0], None if candidate_labels is None else candidate_labels[:, 0]
        given = (labels, candidate_labels, *ids)
        own_labels, other_labels, own_ids, other_ids = (None if one is None else one.contiguous() for one in given)
        assert own_labels is not None
        return cls(own_labels, other_labels, itself, own_ids, other_ids, keeps_positives)

    @property
    def candidate_labels(self) -> Tensor:
        """(m,) or (m, K) int64."""
        return self.labels if self.other_labels is None else self.other_labels

    @property
    def candidate_ids(self) -> Tensor | None:
        """(m, I) int64."""
        return self.ids if self.other_ids is None else self.other_ids

    @property
    def kind(self) -> SetsKind:
        """What kernels know of the sets at compile time."""
        ids = 0 if self.ids is None else self.ids.shape[1]
        return SetsKind(self.itself, width_of(self.labels), ids, self.keeps_positives)

    @property
    def are_plain(self) -> bool:
        """Whether one label a sample tells the sets."""
        return self.labels.dim() == 1 and self.ids is None

    def turned(self) -> "PairSets":
        """The sets of the candidates as anchors."""
        ids = (None, None) if self.ids is None else (self.candidate_ids, self.ids)
        return PairSets.of(self.candidate_labels, self.labels, ids=ids, keeps_positives=self.keeps_positives)

    @cached_property
    def narrow(self) -> tuple[Tensor, Tensor]:
        """Labels of both sides as int32, which vector code compares as fast as floats: 1 for any of several.

        Reads values: CPU only.
        """
        wide = self.labels if self.other_labels is None else torch.cat([self.labels, self.other_labels])
        if wide.dim() == 2:
            wide = torch.where((wide != ABSENT).any(1), 1, ABSENT)
        both = torch.empty_like(wide, dtype=torch.int32)
        module.library.narrow_labels(wide.data_ptr(), len(wide), both.data_ptr())
        n = len(self.labels)
        return (both, both) if self.other_labels is None else (both[:n], both[n:])

    @cached_property
    def relations(self) -> Any:
        """Several labels and ids as a native structure; None without. Reads values: CPU only."""
        if self.are_plain:
            return None
        places = self.labels, self.candidate_labels, self.ids, self.candidate_ids
        labels, candidate_labels, ids, candidate_ids = map(module.address, places)
        return module.library.PairRelations(
            labels=labels,
            candidate_labels=candidate_labels,
            n=len(self.labels),
            m=len(self.candidate_labels),
            labels_each=self.kind.labels,
            ids=ids,
            candidate_ids=candidate_ids,
            ids_each=self.kind.ids,
            keeps_positives=self.keeps_positives,
        )


def width_of(vector: Tensor) -> int:
    """Entries of a sample, in (n,) or (n, K)."""
    return 1 if vector.dim() == 1 else vector.shape[1]


def sets_are_read(sizes: tuple[int, int], labels: Any, candidate_labels: Any, ids: Any, candidate_ids: Any) -> bool:
    """Whether planned steps over ``sizes`` (n, m) read labels and ids, each a tensor or None, as they are."""
    for own, others in ((labels, candidate_labels), (ids, candidate_ids)):
        for one, rows in zip((own, others), sizes, strict=True):
            if one is not None and (one.dtype != torch.int64 or one.dim() > 2 or not one.is_contiguous()):
                return False
            if one is not None and (one.shape[:1] != (rows,) or not width_of(one)):
                return False
        if others is not None and (own is None or own.shape[1:] != others.shape[1:]):
            return False
    # Candidates with labels of their own have ids of their own, and others are as many as the anchors.
    return candidate_labels is None or (ids is None) == (candidate_ids is None)


def _of_one_width(*sides: Tensor) -> Iterator[Tensor]:
    """Labels (n,) or (n, K) of both sides, with as many columns."""
    most = max(map(width_of, sides))
    for one in sides:
        columns = one.reshape(len(one), -1) if len(one) else one.new_empty(0, width_of(one))
        yield torch.nn.functional.pad(columns, (0, most - columns.shape[1]), value=ABSENT)


def members(sets: PairSets, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Positives and negatives of the anchors ``first:last``, (c, m) bool."""
    labels, others = sets.labels[first:last], sets.candidate_labels
    if labels.dim() == 1:
        same = labels[:, None] == others
        present = (labels != ABSENT)[:, None] & (others != ABSENT)
    else:
        present = (labels != ABSENT).any(1)[:, None] & (others != ABSENT).any(1)
        same = torch.zeros_like(present)
        for mine in labels.unbind(1):
            for its in others.unbind(1):
                same |= (mine[:, None] == its) & (mine != ABSENT)[:, None]
    positive, negative = same & present, present & ~same
    if sets.itself:
        positive.diagonal(first).fill_(False)
    ids, other_ids = sets.ids, sets.candidate_ids
    if ids is not None and other_ids is not None:
        for mine, its in zip(ids[first:last].unbind(1), other_ids.unbind(1), strict=True):
            apart = (mine[:, None] != its) | (mine < 0)[:, None]
            negative &= apart
            if not sets.keeps_positives:
                positive &= apart
    return positive, negative


def count_pairs(sets: PairSets) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs of each anchor, (n,) each; of size n×m there is a chunk of anchors at a time."""
    n, m = len(sets.labels), len(sets.candidate_labels)
    rows = chunk_rows(n, m, sets.labels.device)
    found = [
        [side.sum(1) for side in members(sets, first, min(n, first + rows))] for first in range(0, n, max(1, rows))
    ]
    if not found:
        none = sets.labels.new_zeros(0)
        return none, none
    positive, negative = (torch.cat(side) for side in zip(*found, strict=True))
    return positive, negative
