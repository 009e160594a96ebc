"""What PRISM scores samples with: log P_clean by class means, proxies or von Mises–Fisher distributions."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustdml_ops.ops import class_lse, fit_vmf, vmf_log_peak
from robustdml_ops.robust.buffers import TypedBuffers
from robustdml_ops.robust.memory_bank import ClassStatistics, MemoryBank
from robustdml_ops.robust.vmf_classes import VmfClasses

_REFRESH_ROWS = 65_536


class Scores(NamedTuple):
    """One score per sample."""

    values: Tensor  # (B,) log P_clean, or a mean cosine
    known: Tensor  # (B,) bool: whether there is anything to judge the sample by; values are those of P_clean = 1 if not
    stands_in: bool = False  # whether they are AvgSim's, until vMF-Sim begins: on another scale


class BatchPositive(nn.Module):
    """Mean cosine with the other samples of the class in the batch, Eq. 20."""

    def score(self, X: Tensor, labels: Tensor, sample_ids: Tensor | None, proxies: Tensor | None) -> Scores:
        """Score unit rows ``X`` (B, D)."""
        others = (labels[:, None] == labels).fill_diagonal_(False)
        number = others.sum(1)
        mean = ((X @ X.t()) * others).sum(1) / number.clamp(min=1)
        return Scores(torch.where(number > 0, mean, 1), number > 0)

    def advance(self, labels: Tensor) -> None:
        """Nothing is kept."""

    def enqueue(self, X: Tensor, labels: Tensor, keep: Tensor, sample_ids: Tensor | None) -> None:
        """Nothing is kept."""


class ProxySimilarity(TypedBuffers):
    """ProxySim: the nearest proxy of each class, Eqs. 8 and 9."""

    observed: Tensor

    def __init__(self, num_classes: int, backend: str | None) -> None:
        super().__init__()
        self.backend = backend
        self.register_buffer("observed", torch.zeros(num_classes, dtype=torch.bool))

    def score(self, X: Tensor, labels: Tensor, sample_ids: Tensor | None, proxies: Tensor | None) -> Scores:
        """Score unit rows ``X`` (B, D) against ``proxies`` (C, D) or (C, H, D)."""
        assert proxies is not None
        pooling = "none" if proxies.dim() == 2 else "max"
        lse = class_lse(X, proxies.detach(), labels, pooling=pooling, exclude_target=True, backend=self.backend)
        known = self.observed[labels]
        return Scores(_log_softmax(lse.target, lse.lse, known), known)

    def advance(self, labels: Tensor) -> None:
        """Classes of a batch that has been scored are not new to the next one."""
        self.observed.index_fill_(0, labels, True)

    def enqueue(self, X: Tensor, labels: Tensor, keep: Tensor, sample_ids: Tensor | None) -> None:
        """Nothing but the proxies is compared with."""


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

    def score(self, X: Tensor, labels: Tensor, sample_ids: Tensor | None, proxies: Tensor | None) -> Scores:
        """Score unit rows ``X`` (B, D)."""
        own = self._own_class(labels, sample_ids)
        known = own.counts > 0
        return Scores(torch.where(known, _mean_cosine(X, own), 1), known)

    def advance(self, labels: Tensor) -> None:
        """What is kept changes in `enqueue`."""

    def enqueue(self, X: Tensor, labels: Tensor, keep: Tensor, sample_ids: Tensor | None) -> None:
        """Store the kept rows."""
        self.bank.enqueue(X, labels, sample_ids, keep)

    def _own_class(self, labels: Tensor, sample_ids: Tensor | None) -> ClassStatistics:
        """Of each sample's class, without its own copies where the bank can tell them."""
        if self.bank.copies is None:
            return ClassStatistics(self.bank.sums.index_select(0, labels), self.bank.counts[labels])
        if sample_ids is None:
            raise ValueError("sample_ids is missing, and PRISM(num_samples=) needs it: pass (B,) integers")
        return self.bank.without_own_copies(sample_ids, labels, self.max_copies)


class AverageSimilarity(MemoryPositive):
    """AvgSim: a softmax over the classes' mean cosines, Eqs. 5 to 7.

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
        super().__init__(bank, max_copies)
        self.backend = backend
        self.bias_of_unseen = -torch.inf if unseen == "skip" else 0.0
        # The logits are scale_k x·Σ_k + bias_k; these two change only for the classes that a batch touches.
        self.register_buffer("scale", torch.zeros(bank.num_classes, dtype=bank.sums.dtype))
        self.register_buffer("bias", torch.full((bank.num_classes,), self.bias_of_unseen, dtype=bank.sums.dtype))

    def score(self, X: Tensor, labels: Tensor, sample_ids: Tensor | None, proxies: Tensor | None) -> Scores:
        """Score unit rows ``X`` (B, D)."""
        lse = class_lse(
            X,
            self.bank.sums,
            labels,
            scale=self.scale,
            bias=self.bias,
            exclude_target=True,
            normalize_proxies=False,
            backend=self.backend,
        )
        if self.bank.copies is None:
            target, known = lse.target, self.bank.counts[labels] > 0
        else:
            own = self._own_class(labels, sample_ids)
            target, known = self._logit(X, own), own.counts > 0
        return Scores(_log_softmax(target, lse.lse, known), known)

    def enqueue(self, X: Tensor, labels: Tensor, keep: Tensor, sample_ids: Tensor | None) -> None:
        """Store the kept rows, and bring up to date the classes they enter and those that others leave."""
        touched = self.bank.enqueue(X, labels, sample_ids, keep)
        # Of few classes a batch may name more than there are: then all of them are the smaller job.
        few = len(self.scale) < len(touched)
        self._refresh(torch.arange(len(self.scale), device=touched.device) if few else touched)

    def _refresh(self, touched: Tensor) -> None:
        classes = touched.clamp(min=0)  # for the padding, class 0 comes out as it was
        scale, bias = self._fit(touched)
        self.scale.index_copy_(0, classes, scale)
        self.bias.index_copy_(0, classes, torch.where(self.bank.counts[classes] > 0, bias, self.bias_of_unseen))

    def _fit(self, touched: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and bias of these classes; a class that is not in the bank has a sum of 0."""
        scale = self.bank.counts[touched.clamp(min=0)].clamp(min=1).to(self.scale.dtype).reciprocal()
        return scale, torch.zeros_like(scale)

    def _logit(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """Logit of each sample (B,) at a class of its own, ``own``."""
        return _mean_cosine(X, own)


class VmfSimilarity(AverageSimilarity):
    """vMF-Sim: a softmax over the classes' log-densities, Eqs. 10 to 14, after AvgSim's first iterations.

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
        self.iteration = 0
        self.vmf = VmfClasses(
            bank.num_classes, bank.embedding_size, estimator, bias_correction, backend=backend, dtype=bank.sums.dtype
        )

    @property
    def has_begun(self) -> bool:
        """Whether AvgSim has been taken over from."""
        return self.iteration >= self.start

    def score(self, X: Tensor, labels: Tensor, sample_ids: Tensor | None, proxies: Tensor | None) -> Scores:
        """Score unit rows ``X`` (B, D)."""
        return super().score(X, labels, sample_ids, proxies)._replace(stands_in=not self.has_begun)

    def advance(self, labels: Tensor) -> None:
        """Count the iteration; at the change all classes are fitted, and from then on those that a batch touches."""
        self.iteration += 1
        if self.iteration == self.start:
            for classes in torch.split(torch.arange(len(self.scale), device=self.scale.device), _REFRESH_ROWS):
                self._refresh(classes)

    def get_extra_state(self) -> Tensor:
        """Iteration and start: numbers of Python's, which decide what runs without a look at the device."""
        return torch.tensor([self.iteration, self.start])

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the iteration; ValueError where the saved weights are not those of this start."""
        iteration, start = state.tolist()
        if (iteration >= start) != (iteration >= self.start):
            raise ValueError(
                f"vmf_start={self.start}, but the state is of iteration {iteration} with vmf_start={start}: "
                "give the latter"
            )
        self.iteration = iteration

    def _fit(self, touched: Tensor) -> tuple[Tensor, Tensor]:
        if not self.has_begun:
            return super()._fit(touched)
        self.vmf.refresh(self.bank, touched)
        classes = touched.clamp(min=0)
        kappa = self.vmf.kappa[classes]
        # The length of a sum goes into its scale: no sweep has to normalise all of them. A sum of length 0 has κ = 0.
        length = torch.linalg.vector_norm(self.bank.sums.index_select(0, classes), dim=1)
        return kappa / length.clamp(min=torch.finfo(kappa.dtype).tiny), self.vmf.log_peak[classes] - kappa

    def _logit(self, X: Tensor, own: ClassStatistics) -> Tensor:
        if not self.has_begun:
            return super()._logit(X, own)
        mean_direction, kappa = fit_vmf(
            own.sums, own.counts, None, self.vmf.estimator, self.vmf.bias_correction, backend=self.backend
        )
        peak = vmf_log_peak(self.bank.embedding_size, kappa, backend=self.backend)
        return peak - kappa * (1 - (X * mean_direction).sum(1))


def _mean_cosine(X: Tensor, own: ClassStatistics) -> Tensor:
    """Mean cosine of each unit row with those that ``own`` sums, (B,); 0 where there are none."""
    return (X * own.sums).sum(1) / own.counts.clamp(min=1)


def _log_softmax(target: Tensor, others: Tensor, known: Tensor) -> Tensor:
    """Log P_clean from the logit of the label and the log-sum-exp of all other classes; 0 for an unknown class.

    The difference to a log-sum-exp of all would be lost to rounding where P_clean is nearly 1.
    """
    return torch.where(known, functional.logsigmoid(target - others), 0)
