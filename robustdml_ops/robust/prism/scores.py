"""The similarities of PRISM: each gives every sample of a batch a score, most often log P_clean."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess
from robustdml_ops.ops import class_lse
from robustdml_ops.robust.bank.class_sums import ClassStatistics
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.batch import Batch, check_values
from robustdml_ops.robust.buffers import TypedBuffers

# Rows of a class, a sample's own left out, from which on there is a distribution to judge by (`CautiousThreshold`).
FEWEST_ROWS = 5


class Scores(NamedTuple):
    """One score per sample."""

    values: Tensor  # (B,) log P_clean, or a mean cosine; where not known that of P_clean = 1
    known: Tensor  # (B,) bool: whether there is anything to judge the sample by
    stands_in: Tensor | None = None  # () bool: AvgSim's scores, as vMF-Sim has not begun; None: nothing stands in
    bank_is_empty: Tensor | None = None  # () bool, where the threshold asks for it
    rows: Tensor | None = None  # (B,) rows of the class to judge by, where the threshold asks for it
    of_other_labels: Tensor | None = None  # (B,) each sample's score for the label of another one, NaN for its own


class Similarity(Protocol):
    """What PRISM asks of a similarity. Rows of a batch have length 1."""

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch, and check the values of its rows and labels; changes no state."""

    def advance(self, labels: Tensor) -> None:
        """Called once a training step, after `score`."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """Remember the rows that ``keep`` (B,) marks, of a batch whose values have been checked."""


class BatchPositive(nn.Module):
    """Mean cosine with the other samples of the class in the batch, Eq. 20."""

    shards: OneProcess = ONE_PROCESS  # who has the other samples

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch; a sample that is alone in its class is not known."""
        check_values(batch, self.num_classes)
        X, labels, _ = batch
        own, places = self.shards.place(), torch.arange(len(labels), device=labels.device)
        others = (labels[own, None] == labels) & (places[own, None] != places)
        number = others.sum(1)
        mean = ((X[own] @ X.t()) * others).sum(1) / number.clamp(min=1)
        known, values = self.shards.gather(number > 0), self.shards.gather(torch.where(number > 0, mean, 1))
        assert known is not None and values is not None
        return Scores(values, known)

    def class_dimensions(self) -> dict[str, int]:
        """Nothing is divided but the pairs: each process scores its own samples."""
        return {}

    def advance(self, labels: Tensor) -> None:
        """There is no state."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """There is no memory."""


class ProxySimilarity(TypedBuffers):
    """ProxySim: a softmax over the cosines with the nearest proxy of each class, Eqs. 8 and 9."""

    observed: Tensor
    shards: OneProcess = ONE_PROCESS

    def __init__(self, num_classes: int, backend: str | None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.backend = backend
        self.register_buffer("observed", torch.zeros(num_classes, dtype=torch.bool))

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch against ``proxies`` (C, D) or (C, H, D); a class is known once a batch had it."""
        if proxies is None:
            raise ValueError('proxies are missing, and similarity="proxy" needs them: pass (C, D) or (C, H, D)')
        if not isinstance(proxies, Tensor):
            raise TypeError(f"proxies must be a torch.Tensor, not {type(proxies).__name__}")
        proxies = self.shards.given(proxies)
        shape, (C, D) = tuple(proxies.shape), (len(self.observed), batch.X.shape[1])
        if len(shape) not in (2, 3) or (shape[0], shape[-1]) != (C, D) or not proxies.is_floating_point():
            raise ValueError(
                f"proxies must be floating point of shape ({C}, {D}) or ({C}, H, {D}), got {shape} of {proxies.dtype}"
            )
        pooling = "none" if len(shape) == 2 else "max"
        # It checks the values of rows and labels, too.
        lse, target = joint_class_lse(
            self.shards, batch, proxies, pooling=pooling, exclude_target=True, backend=self.backend
        )
        known = self.shards.of_labels(self.observed, batch.labels)
        return Scores(log_softmax(target, lse, known), known)

    def class_dimensions(self) -> dict[str, int]:
        """What has something for each class, and which dimension counts them."""
        return {"observed": 0}

    def advance(self, labels: Tensor) -> None:
        """Classes of a batch that has been scored are known from then on."""
        if not self.shards.divided:
            self.observed.index_fill_(0, labels, True)
        else:
            self.observed |= counts_here(self.shards, labels, torch.ones_like(labels), len(self.observed)) > 0

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """There is no memory."""


class MemoryPositive(TypedBuffers):
    """Mean cosine with the rows of the class in the bank, Eq. 21.

    If the bank has a number of samples, up to ``max_copies`` copies of the sample itself are left out.
    """

    def __init__(self, bank: MemoryBank, max_copies: int | None) -> None:
        super().__init__()
        self.bank = bank
        self.max_copies = max_copies

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch; a class without rows in the bank is not known."""
        check_values(batch, self.bank.num_classes)
        shards, own = self.bank.shards, own_class(self.bank, batch, self.max_copies)
        known = shards.from_owners(own.counts, batch.labels) > 0
        mean = shards.from_owners(mean_cosine(batch.X, own), batch.labels)
        return Scores(torch.where(known, mean, 1), known)

    def advance(self, labels: Tensor) -> None:
        """The state changes in `enqueue` alone."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """Store the kept rows."""
        self.bank.store(batch, keep)


def own_class(bank: MemoryBank, batch: Batch, max_copies: int | None) -> ClassStatistics:
    """Of each sample's class, without its own copies where the bank can tell them; 0 of classes that are not here."""
    if bank.copies is None:
        rows, labels = bank.shards.at_labels, batch.labels
        return ClassStatistics(rows(bank.sums, labels), rows(bank.counts, labels))
    assert batch.sample_ids is not None and max_copies is not None
    return bank.others_of_class(batch.sample_ids, batch.labels, max_copies)


def mean_cosine(X: Tensor, own: ClassStatistics) -> Tensor:
    """Mean cosine of each unit row with the rows that ``own`` sums, (B,); 0 where there are none."""
    return (X * own.sums).sum(1) / own.counts.clamp(min=1)


def joint_class_lse(shards: OneProcess, batch: Batch, proxies: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    """:func:`class_lse` over the classes of all processes, ``proxies`` being those that are here.

    It checks the values of rows and labels, too, but not labels of other processes' classes.
    """
    lse = class_lse(batch.X, proxies, shards.labels(batch.labels), elsewhere=shards.divided, **settings)
    return shards.log_sum_exp(*lse, batch.labels)


def counts_here(shards: OneProcess, labels: Tensor, counted: Tensor, classes: int) -> Tensor:
    """Σ of ``counted`` (B,) int64 by the classes that are here, (``classes``,)."""
    here = shards.labels(labels)
    total = torch.zeros(classes, dtype=torch.int64, device=labels.device)
    return total if classes == 0 else total.index_add_(0, here.clamp(min=0), counted * (here >= 0))


def log_softmax(target: Tensor, others: Tensor, known: Tensor) -> Tensor:
    """Log P_clean from the logit of the label and the log-sum-exp of all other classes; 0 for an unknown class.

    A log-sum-exp of all classes minus the logit would be rounded to 0 where P_clean is nearly 1.
    """
    return torch.where(known, functional.logsigmoid(target - others), 0)
