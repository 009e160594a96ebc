"""Storing a batch in a memory bank: the input of every backend, and the backend of plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml_ops.robust.bank.class_sums import ClassStatistics, exchange_rows
from robustdml_ops.robust.bank.sample_copies import SampleCopies


@dataclass(frozen=True)
class StoreProblem:
    """A batch, the slots of the bank and the statistics of its classes, which change in place."""

    X: Tensor  # (B, D) in the type of the features
    new_labels: Tensor  # (B,) int64
    new_ids: Tensor | None  # (B,) int64; None: −1 is stored
    keep: Tensor  # (B,) bool: which rows enter
    features: Tensor  # (capacity, D); of a divided queue, those of its window
    labels: Tensor  # (capacity,) int64, negative where a slot is empty
    sample_ids: Tensor  # (capacity,) int64
    classes: ClassStatistics  # of the classes that are here
    enqueued: Tensor  # () int64: rows ever stored
    copies: SampleCopies | None  # requires new_ids
    here: Callable[[Tensor], Tensor]  # labels counted from the first class that is here, negative for other classes

    @property
    def capacity(self) -> int:
        """Slots."""
        return len(self.labels)

    @property
    def most(self) -> int:
        """M = min(B, capacity), the most rows that enter; the host never knows how many do."""
        return min(len(self.new_labels), self.capacity)


class RowStore:
    """Base class of every backend that stores rows."""

    def store(self, problem: StoreProblem) -> Tensor:
        """Store the batch, B ≥ 1; returns the classes (2M,) that rows enter, then those that rows leave, < 0 for none.

        Kept rows take the slots behind the last row in their order; if they exceed the capacity, the last ones are
        stored. On a GPU a row with NaN or inf counts as not kept. The sum of a class adds the entering rows in the
        order of the batch, then subtracts the leaving ones, the oldest first; without rows it is 0.
        """
        raise NotImplementedError


class EagerRowStore(RowStore):
    """On every device, without a compiler."""

    def store(self, problem: StoreProblem) -> Tensor:
        """Store in plain PyTorch."""
        features, labels, ids, keep = problem.X, problem.new_labels, problem.new_ids, problem.keep
        if features.device.type != "cpu":
            keep = keep & (features - features == 0).all(1)  # isfinite().all() takes two launches more
        if ids is None:
            ids = torch.full_like(labels, -1)
        rank, first, capacity = keep.cumsum(0), problem.enqueued, problem.capacity
        kept = rank[-1]
        if len(keep) > capacity:
            overflow = (kept - capacity).clamp(min=0)
            keep, first = keep & (rank > overflow), first + overflow
        order = torch.argsort(keep.byte(), descending=True, stable=True)[: problem.most]
        features, labels, ids, entering = (given.index_select(0, order) for given in (features, labels, ids, keep))
        # One slot per row, all different; rows that do not enter write back the old content of their slot.
        serials = first + torch.arange(len(order), device=order.device)
        slots = serials % capacity
        old_features, old_labels = problem.features.index_select(0, slots), problem.labels[slots]
        features = torch.where(entering[:, None], features, old_features)

        touched = torch.where(entering, torch.stack([labels, old_labels]), -1).flatten().clamp_(min=-1)
        touched = problem.here(touched)  # classes of other processes become negative, as padding
        if len(problem.classes.counts):
            exchange_rows(problem.classes, touched, features, old_features)
        if problem.copies is not None:
            problem.copies.link(ids, serials, entering)
        problem.features.index_copy_(0, slots, features)
        problem.labels.index_copy_(0, slots, torch.where(entering, labels, old_labels))
        problem.sample_ids.index_copy_(0, slots, torch.where(entering, ids, problem.sample_ids[slots]))
        problem.enqueued.add_(kept)
        return touched
