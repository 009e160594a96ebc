"""The similarities of PRISM: each gives every sample of a batch a score, most often log P_clean."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustdml_ops.ops import class_lse
from robustdml_ops.robust.batch import Batch, check_values
from robustdml_ops.robust.buffers import TypedBuffers
from robustdml_ops.robust.class_sums import ClassStatistics
from robustdml_ops.robust.memory_bank import MemoryBank
from robustdml_ops.robust.prism_logits import MeanCosine, VmfDensity
from robustdml_ops.robust.vmf_classes import VmfClasses


class Scores(NamedTuple):
    """One score per sample."""

    values: Tensor  # (B,) log P_clean, or a mean cosine; where not known that of P_clean = 1
    known: Tensor  # (B,) bool: whether there is anything to judge the sample by
    stands_in: bool = False  # whether these are AvgSim's scores because vMF-Sim has not begun; their scale differs


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

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch; a sample that is alone in its class is not known."""
        check_values(batch, self.num_classes)
        X, labels, _ = batch
        others = (labels[:, None] == labels).fill_diagonal_(False)
        number = others.sum(1)
        mean = ((X @ X.t()) * others).sum(1) / number.clamp(min=1)
        return Scores(torch.where(number > 0, mean, 1), number > 0)

    def advance(self, labels: Tensor) -> None:
        """There is no state."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """There is no memory."""


class ProxySimilarity(TypedBuffers):
    """ProxySim: a softmax over the cosines with the nearest proxy of each class, Eqs. 8 and 9."""

    observed: Tensor

    def __init__(self, num_classes: int, backend: str | None) -> None:
        super().__init__()
        self.backend = backend
        self.register_buffer("observed", torch.zeros(num_classes, dtype=torch.bool))

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch against ``proxies`` (C, D) or (C, H, D); a class is known once a batch had it."""
        if proxies is None:
            raise ValueError('proxies are missing, and similarity="proxy" needs them: pass (C, D) or (C, H, D)')
        if not isinstance(proxies, Tensor):
            raise TypeError(f"proxies must be a torch.Tensor, not {type(proxies).__name__}")
        shape, (C, D) = tuple(proxies.shape), (len(self.observed), batch.X.shape[1])
        if len(shape) not in (2, 3) or (shape[0], shape[-1]) != (C, D) or not proxies.is_floating_point():
            raise ValueError(
                f"proxies must be floating point of shape ({C}, {D}) or ({C}, H, {D}), got {shape} of {proxies.dtype}"
            )
        pooling = "none" if len(shape) == 2 else "max"
        lse = class_lse(batch.X, proxies, batch.labels, pooling=pooling, exclude_target=True, backend=self.backend)
        known = self.observed[batch.labels]
        return Scores(_log_softmax(lse.target, lse.lse, known), known)

    def advance(self, labels: Tensor) -> None:
        """Classes of a batch that has been scored are known from then on."""
        self.observed.index_fill_(0, labels, True)

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """There is no memory."""


class MemoryPositive(TypedBuffers):
    """Mean cosine with the rows of the class in the bank, Eq. 21.

    Parameters
    ----------
    bank : MemoryBank
        Of unit rows. If it knows the number of samples, a sample's own copies are left out.
    max_copies : int, optional
        How many of them are looked for.
    """

    def __init__(self, bank: MemoryBank, max_copies: int | None) -> None:
        super().__init__()
        self.bank = bank
        self.max_copies = max_copies

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch; a class without rows in the bank is not known."""
        check_values(batch, self.bank.num_classes)
        own = _own_class(self.bank, batch, self.max_copies)
        known = own.counts > 0
        return Scores(torch.where(known, MeanCosine().of_own(batch.X, own), 1), known)

    def advance(self, labels: Tensor) -> None:
        """The state changes in `enqueue` alone."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """Store the kept rows."""
        self.bank.store(batch, keep)


class BankSoftmax(TypedBuffers):
    """A softmax over the classes of the bank: AvgSim, Eqs. 5 to 7, while ``logit`` is a :class:`MeanCosine`.

    Parameters
    ----------
    bank, max_copies
        As in :class:`MemoryPositive`.
    unseen : {"skip", "zero"}
        What a class that is not in the bank adds to the denominator: nothing, or e⁰.
    backend : str, optional
        Of the class log-sum-exp.
    """

    scale: Tensor
    bias: Tensor

    def __init__(self, bank: MemoryBank, max_copies: int | None, unseen: str, backend: str | None) -> None:
        super().__init__()
        self.bank = bank
        self.max_copies = max_copies
        self.backend = backend
        self.logit: MeanCosine | VmfDensity = MeanCosine()
        self.stands_in = False
        self.bias_of_unseen = -torch.inf if unseen == "skip" else 0.0
        # The logits are scale_k x·Σ_k + bias_k; scale and bias change only for the classes that a batch touches.
        self.register_buffer("scale", torch.zeros(bank.num_classes, dtype=bank.sums.dtype))
        self.register_buffer("bias", torch.full((bank.num_classes,), self.bias_of_unseen, dtype=bank.sums.dtype))

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch; a class without rows in the bank is not known."""
        lse = class_lse(
            batch.X,
            self.bank.sums,
            batch.labels,
            scale=self.scale,
            bias=self.bias,
            exclude_target=True,
            normalize_proxies=False,
            backend=self.backend,
        )
        if self.bank.copies is None:
            target, known = lse.target, self.bank.counts[batch.labels] > 0
        else:
            own = _own_class(self.bank, batch, self.max_copies)
            target, known = self.logit.of_own(batch.X, own), own.counts > 0
        return Scores(_log_softmax(target, lse.lse, known), known, self.stands_in)

    def advance(self, labels: Tensor) -> None:
        """The state changes in `enqueue` alone."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """Store the kept rows, and bring up to date the classes that rows enter or leave."""
        touched = self.bank.store(batch, keep)
        # Where the bank has few classes, a batch may name more than there are: all of them are then less work.
        self.refresh(None if len(self.scale) < len(touched) else touched.clamp(min=0))  # for −1, class 0 stays as it is

    def refresh(self, classes: Tensor | None) -> None:
        """Bring scale and bias of these classes (n,), or of all, up to date."""
        scale, bias = self.logit.of_classes(self.bank, classes)
        if classes is None:
            classes = torch.arange(len(scale), device=scale.device)
        self.scale.index_copy_(0, classes, scale)
        self.bias.index_copy_(0, classes, torch.where(self.bank.counts[classes] > 0, bias, self.bias_of_unseen))


class VmfSimilarity(BankSoftmax):
    """vMF-Sim: AvgSim in the first iterations, then a softmax over the classes' log-densities, Eqs. 10 to 14.

    Parameters
    ----------
    bank, max_copies
        As in :class:`MemoryPositive`.
    start : int
        I_v, iterations of AvgSim.
    estimator, bias_correction : str
        As in :func:`robustdml_ops.ops.fit_vmf`.
    backend : str, optional
        Of all ops.
    """

    def __init__(
        self,
        bank: MemoryBank,
        max_copies: int | None,
        start: int,
        estimator: str,
        bias_correction: str,
        backend: str | None,
    ) -> None:
        super().__init__(bank, max_copies, "skip", backend)
        self.start = start
        self.vmf = VmfClasses(
            bank.num_classes, bank.embedding_size, estimator, bias_correction, backend=backend, dtype=bank.sums.dtype
        )
        self._set_iteration(0)

    def advance(self, labels: Tensor) -> None:
        """Count the iteration; when vMF-Sim begins, all classes are fitted."""
        self._set_iteration(self.iteration + 1)
        if self.iteration == self.start:
            self.refresh(None)

    def get_extra_state(self) -> Tensor:
        """Iteration and start: numbers of Python's, so that no step has to read one back from the device."""
        return torch.tensor([self.iteration, self.start])

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the iteration; ValueError where vMF-Sim has begun by the saved start and not by this one."""
        iteration, start = state.tolist()
        if (iteration >= start) != (iteration >= self.start):
            raise ValueError(
                f"vmf_start={self.start}, but the state is of iteration {iteration} with vmf_start={start}: "
                "give the latter"
            )
        self._set_iteration(iteration)

    def _set_iteration(self, iteration: int) -> None:
        self.iteration = iteration
        self.stands_in = iteration < self.start
        self.logit = MeanCosine() if self.stands_in else VmfDensity(self.vmf)


def _own_class(bank: MemoryBank, batch: Batch, max_copies: int | None) -> ClassStatistics:
    """Of each sample's class, without its own copies where the bank can tell them."""
    if bank.copies is None:
        return ClassStatistics(bank.sums.index_select(0, batch.labels), bank.counts[batch.labels])
    assert batch.sample_ids is not None and max_copies is not None
    return bank.others_of_class(batch.sample_ids, batch.labels, max_copies)


def _log_softmax(target: Tensor, others: Tensor, known: Tensor) -> Tensor:
    """Log P_clean from the logit of the label and the log-sum-exp of all other classes; 0 for an unknown class.

    The difference to a log-sum-exp of all would be lost to rounding where P_clean is nearly 1.
    """
    return torch.where(known, functional.logsigmoid(target - others), 0)
