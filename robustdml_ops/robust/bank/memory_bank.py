"""A first-in-first-out bank of embeddings, with the sums of its classes."""

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import choose, in_registry
from robustdml_ops.engine.labels import ABSENT, check_label_range
from robustdml_ops.engine.shards import ClassBuffers
from robustdml_ops.engine.sums import add_rows
from robustdml_ops.engine.validation import check_finite_rows, check_sizes
from robustdml_ops.ops.self_check_cases import Inputs, register_cases
from robustdml_ops.robust.bank.row_store import (
    ROW_STORES,
    ClassStatistics,
    QueueWindow,
    SampleCopies,
    Slots,
    StoreProblem,
    picked,
    spread,
)
from robustdml_ops.robust.checked_batch import (
    CheckedBatch,
    batch_of_all,
    check_batch,
    check_ddp_buffers,
    check_keep,
)

_RECOMPUTE_ROWS = 65_536


class MemoryBank(ClassBuffers):
    """Queue of embeddings, labels and sample ids; per class, the sum and the number of its rows.

    ``features`` is (capacity, D); ``labels`` (capacity,) int64, ``ABSENT`` where a slot is empty; ``sample_ids``
    (capacity,) int64, −1 where no id was given; in a bank divided by
    :func:`~robustdml_ops.distributed.shard_classes` DTensors, by slots. ``sums`` and ``counts`` are (C, D) and (C,)
    int64, and ``enqueued`` () int64, rows ever stored.

    Rows are stored as given: pass unit vectors, as PRISM does. Nothing waits for the device. All state is in buffers,
    whose types ``.half()`` and the like do not change; a resumed run equals an unbroken one bit for bit.

    Source: Liu et al., "Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering", section III-B
    and Eq. 6.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D.
    capacity : int
        Number of rows. When the bank is full, a new row replaces the oldest.
    dtype : torch.dtype
        Type of the stored rows, floating point. Sums are float32, or float64 for float64 rows; they add rows as stored,
        and drift by 1e-6 to 1e-5 over 200 000 updates. The sum of a class that becomes empty is set to 0.
    num_samples : int, optional
        Size of the training set, N. Sample ids are then required, and :class:`PRISM` leaves a sample's own copies out.
    backend : str, optional
        ``"triton"`` stores a batch in a few launches, ``"eager"`` in about forty. None: the fastest that serves the
        device.

    Examples
    --------
    >>> import torch
    >>> bank = MemoryBank(num_classes=3, embedding_size=2, capacity=2)
    >>> bank.enqueue(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor([ 0,  0, -1, -1])
    >>> bank.enqueue(torch.tensor([[0.6, 0.8]]), torch.tensor([2]))  # the oldest row, of class 0, leaves
    tensor([2, 0])
    >>> bank.class_means()[2], bank.counts
    (tensor([0.6000, 0.8000]), tensor([1, 0, 1]))
    """

    features: Tensor
    labels: Tensor
    sample_ids: Tensor
    sums: Tensor
    counts: Tensor
    enqueued: Tensor
    shown = ("num_classes", "embedding_size", "capacity")
    class_buffers = ("sums", "counts")
    slot_buffers = ("features", "labels", "sample_ids")  # with an entry per slot: DTensors where the bank is divided

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        num_samples: int | None = None,
        *,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size, capacity=capacity)
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, got {dtype}")
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.capacity, self.num_samples = capacity, num_samples
        self.backend = backend
        self.copies = None if num_samples is None else SampleCopies(num_samples, capacity)
        self.register_buffer("features", torch.zeros(capacity, embedding_size, dtype=dtype))
        self.register_buffer("labels", torch.full((capacity,), ABSENT))
        self.register_buffer("sample_ids", torch.full((capacity,), -1))
        sum_dtype = torch.promote_types(dtype, torch.float32)
        self.register_buffer("sums", torch.zeros(num_classes, embedding_size, dtype=sum_dtype))
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.int64))

    def class_means(self, classes: Tensor | None = None) -> Tensor:
        """Mean rows, (C, D), or (n, D) of ``classes`` (n,); not normalised, 0 for a class that is not in the bank."""
        sums, counts = (self.sums, self.counts) if classes is None else (self.sums[classes], self.counts[classes])
        return sums / counts.clamp(min=1)[:, None]

    @torch.no_grad()
    def enqueue(
        self, features: Tensor, labels: Tensor, sample_ids: Tensor | None = None, keep: Tensor | None = None
    ) -> Tensor:
        """Store a batch in place of the oldest rows.

        Returns the classes whose sums and counts have changed, (2·min(B, capacity),) int64, with repetitions, and −1 as
        padding.

        Parameters
        ----------
        features, labels : Tensor
            (B, D), floating point, rounded to the bank's type; (B,), integers in 0..C-1. If B exceeds the capacity, the
            last rows are stored.
        sample_ids : Tensor, optional
            (B,), integers; in 0..N-1 and required if the bank has ``num_samples``.
        keep : Tensor, optional
            (B,) bool: the rows to store, by default all.

        Raises
        ------
        ValueError, TypeError
            Wrong shapes, types or devices, missing sample ids, on the CPU NaN or inf. Nothing is stored then. On a GPU
            a row with NaN or inf counts as not kept: a check would stall the stream.
        IndexError
            A label or sample id out of range (on a GPU a device-side assertion).
        RuntimeError
            Divided classes within DistributedDataParallel: see :func:`robustdml_ops.distributed.leave_out_of_ddp`.
        """
        check_ddp_buffers(self, self.shards.divided)
        check = partial(self._check, features, labels, sample_ids, keep)
        batch, kept = batch_of_all(self, self.shards, check)
        assert kept is not None
        return self.store(batch, kept)

    def _check(
        self, features: Tensor, labels: Tensor, sample_ids: Tensor | None, keep: Tensor | None
    ) -> tuple[CheckedBatch, Tensor]:
        """The batch in the type of the features, and which of its rows are kept."""
        D, N = self.embedding_size, self.num_samples
        batch = check_batch("features", features, labels, sample_ids, D, N, self.sums)
        check_label_range(batch.labels, self.num_classes)
        stored = features.to(self.features.dtype)
        where = f"in the model or in {stored.dtype}, as which rows are stored"
        check_finite_rows(stored, "features", f"look for an overflow {where}, or keep the row out of the batch")
        keep = torch.ones_like(batch.labels, dtype=torch.bool) if keep is None else check_keep(keep, batch.labels)
        return batch._replace(X=stored), keep

    def store(self, batch: CheckedBatch, keep: Tensor) -> Tensor:
        """Store the kept rows of a batch whose values have been checked; returns what `enqueue` returns."""
        if self.sums.dtype.itemsize < 4:
            raise TypeError(
                f"the sums of this {type(self).__name__} have become {self.sums.dtype}, in which they would drift: "
                "leave buffer_dtype out of FSDP's MixedPrecision, or give FSDP the filter among ignored_modules"
            )
        if len(batch.labels) == 0:
            return batch.labels
        (slots, first), window = self._slots(), None
        if self.shards.divided:
            size = min(len(batch.labels), self.capacity)
            window = QueueWindow(slots, first, self.capacity, self.enqueued, size, self.shards)
            slots = window.slots
        problem = StoreProblem(
            X=batch.X.to(self.features.dtype),
            new_labels=batch.labels,
            new_ids=batch.sample_ids,
            keep=keep,
            **slots._asdict(),
            classes=ClassStatistics(self.sums, self.counts),
            enqueued=self.enqueued,
            copies=self.copies,
            here=self.shards.to_local_labels,
        )
        # torch.compile and the meta device need plain PyTorch.
        backend = "eager" if in_registry(slots.features) else self.backend
        touched = choose(ROW_STORES, backend, self.sums.device, self.sums.dtype)(problem)
        if window is not None:
            window.write_back()
        return touched

    def _slots(self) -> tuple[Slots, int]:
        """The slots on this process, and the index of the first."""
        rows, first = self.shards.local_shard, self.shards.shard_bounds(self.capacity)[0]
        return Slots(rows(self.features), rows(self.labels), rows(self.sample_ids)), first

    @torch.no_grad()
    def recompute(self) -> None:
        """Sum and count the rows in the bank anew, which ends all drift; O(capacity·D). All processes call it."""
        self.sums.zero_()
        self.counts.zero_()
        slots, _ = self._slots()
        for features, labels in self.shards.gather_chunks(
            (slots.features, slots.labels), self.capacity, _RECOMPUTE_ROWS
        ):
            if self.shards.divided:
                labels = self.shards.to_local_labels(labels)
                features = features * (labels >= 0)[:, None]
            if len(self.counts) == 0:
                continue
            classes = spread(labels, len(self.counts))  # an empty slot holds zeros
            add_rows(self.sums, classes, features.to(self.sums.dtype))
            add_rows(self.counts, classes, (labels >= 0).long())

    def others_of_class(self, sample_ids: Tensor, labels: Tensor, max_copies: int) -> ClassStatistics:
        """Sum and number of the rows of each sample's class but its own ``max_copies``; 0 for classes elsewhere."""
        assert self.copies is not None
        shards, (slots, first) = self.shards, self._slots()
        places = self.copies.find(sample_ids, self.enqueued, max_copies) - first  # below 0 where there is no copy
        held = (places >= 0) & (places < len(slots.labels))
        flat = places.flatten(), held.flatten()
        own = held & (picked(slots.labels, *flat).view(held.shape) == labels[:, None])
        copies = picked(slots.features, *flat).view(*held.shape, self.embedding_size)
        copies = shards.sum_over_processes((copies.to(self.sums.dtype) * own[..., None]).sum(1))
        here = shards.owns_labels(labels)
        sums = shards.local_at_labels(self.sums, labels) - copies * here[:, None]
        counts = shards.local_at_labels(self.counts, labels) - shards.sum_over_processes(own.sum(1)) * here
        return ClassStatistics(torch.where(counts[:, None] > 0, sums, 0), counts)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Refuse rows of another type, which would not match the sums."""
        saved = state_dict.get(prefix + "features")
        if saved is not None and saved.dtype != self.features.dtype:
            raise ValueError(
                f"the saved bank holds {saved.dtype} and this one {self.features.dtype}: make it with "
                f"MemoryBank(..., dtype={saved.dtype})"
            )
        if not self.shards.divided:  # else the counts are those of some classes
            _check_counts(state_dict.get(prefix + "labels"), state_dict.get(prefix + "counts"))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _check_counts(labels: Any, counts: Any) -> None:
    """Warn if saved counts (C,) contradict saved labels (capacity,), as they do in an average of states."""
    if any(type(saved) is not Tensor or saved.is_meta for saved in (labels, counts)):
        return
    found = torch.bincount(labels[labels >= 0], minlength=len(counts))
    if torch.equal(found, counts.to(found)):
        return
    warnings.warn(
        "the saved MemoryBank contradicts itself: its counts are not those of its labels. An average of weights, such "
        "as EMA or SWA, that averages buffers as well (use_buffers=True) leaves a bank like this: average with "
        "use_buffers=False, and train on with a new filter. Networks and losses of this state are not affected",
        stacklevel=3,
    )


def _stored(inputs: Inputs, backend: str) -> list[Tensor]:
    """Three batches of which some rows are kept; the last ones overwrite the first."""
    bank = MemoryBank(inputs.C, inputs.D, inputs.B + 3, inputs.X.dtype, 2 * inputs.B, backend=backend)
    bank.to(inputs.X.device)
    ids = torch.arange(inputs.B, device=inputs.X.device)
    for step in range(3):
        keep = (ids + step) % 3 > 0
        bank.enqueue(inputs.X.detach().flip(0), inputs.labels.roll(step) % inputs.C, ids + step, keep)
    assert bank.copies is not None
    return [bank.sums, bank.features, bank.counts, bank.labels, bank.sample_ids, bank.copies.latest]


register_cases("bank", ROW_STORES, *[{"MemoryBank.enqueue": _stored}] * 3)
