"""AvgSim and vMF-Sim: a softmax over the classes of the bank.

T(x, k), how well x fits class k, is linear in x for both: scale_k x·Σ_k + bias_k, with Σ_k the sum of the class's rows.
"""

import torch
from torch import Tensor

from robustdml_ops.ops import class_lse
from robustdml_ops.robust.batch import Batch
from robustdml_ops.robust.buffers import TypedBuffers
from robustdml_ops.robust.class_sums import ClassStatistics
from robustdml_ops.robust.memory_bank import MemoryBank
from robustdml_ops.robust.prism_scores import FEWEST_ROWS, Scores, log_softmax, mean_cosine, own_class
from robustdml_ops.robust.vmf_classes import VmfClasses
from robustdml_ops.vmf import fit_classes, mean_directions


class MeanCosine:
    """AvgSim: the mean cosine of x with the n rows of the class, x·Σ/n, Eqs. 5 and 6."""

    def of_classes(self, bank: MemoryBank, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scale and bias, (n,) each, of these classes of the bank (n,); None: of all."""
        scale = _of(bank.counts, classes).clamp(min=1).to(bank.sums.dtype).reciprocal()
        return scale, torch.zeros_like(scale)

    def of_own(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """T of each unit row X (B, D) and a class of its own, (B,)."""
        return mean_cosine(X, own)


class VmfDensity:
    """vMF-Sim: the log-density of the class's von Mises–Fisher distribution, κ μ·x + log_peak − κ, Eqs. 10 to 13."""

    def __init__(self, vmf: VmfClasses) -> None:
        self.vmf = vmf

    def of_classes(self, bank: MemoryBank, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Fit these classes of the bank anew; scale and bias as of :class:`MeanCosine`."""
        kappa, log_peak, length = self.vmf.fit(bank, classes)
        # The scale divides by ‖Σ‖: then no sweep has to normalise the sums. A sum of length 0 has κ = 0.
        return (kappa / length.clamp(min=torch.finfo(kappa.dtype).tiny)).to(kappa.dtype), log_peak - kappa

    def of_own(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """As of :class:`MeanCosine`; one distribution is fitted per sample."""
        vmf = self.vmf
        fitted = fit_classes(*own, None, vmf.estimator, vmf.bias_correction, backend=vmf.backend)
        return fitted.log_peak - fitted.kappa * (1 - (X * mean_directions(own.sums, fitted)).sum(1))


class BankSoftmax(TypedBuffers):
    """A softmax over the classes of the bank: AvgSim, Eqs. 5 to 7, while ``logit`` is a :class:`MeanCosine`.

    If the bank has a number of samples, T of the label's class is computed without up to ``max_copies`` copies of the
    sample itself. A class that is not in the bank adds nothing to the denominator with unseen "skip", e⁰ with "zero".
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
        self.tries_other_labels = False
        self.bias_of_unseen = -torch.inf if unseen == "skip" else 0.0
        # The logits are scale_k x·Σ_k + bias_k; scale and bias change only for the classes that a batch touches.
        self.register_buffer("scale", torch.zeros(bank.num_classes, dtype=bank.sums.dtype))
        self.register_buffer("bias", torch.full((bank.num_classes,), self.bias_of_unseen, dtype=bank.sums.dtype))

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch; a class without rows in the bank is not known."""
        lse = class_lse(  # which checks the values of rows and labels, too
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
            target, known = lse.target, self.is_known(batch.labels)
        else:
            own = own_class(self.bank, batch, self.max_copies)
            target, known = self.logit.of_own(batch.X, own), own.counts > 0
        scores = Scores(log_softmax(target, lse.lse, known), known, self.stands_in)
        if not self.tries_other_labels:
            return scores
        rows = self.bank.counts[batch.labels] if self.bank.copies is None else own.counts
        return scores._replace(rows=rows, of_other_labels=self._of_other_labels(batch, lse.lse.logaddexp(lse.target)))

    def _of_other_labels(self, batch: Batch, lse: Tensor) -> Tensor:
        """Log P of a label that is surely wrong, if the sample's own is right: that of the sample half a batch away."""
        others = batch.labels.roll(len(batch.labels) // 2)
        logit = self.scale[others] * (batch.X * self.bank.sums.index_select(0, others)).sum(1) + self.bias[others]
        wrong = (others != batch.labels) & (self.bank.counts[others] >= FEWEST_ROWS)
        return (logit - lse).masked_fill(~wrong, torch.nan)

    def is_known(self, labels: Tensor) -> Tensor:
        """Whether there is anything to judge each sample by, (B,) bool, where own copies count."""
        return self.bank.counts[labels] > 0

    def advance(self, labels: Tensor) -> None:
        """The state changes in `enqueue` alone."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """Store the kept rows, and bring up to date the classes that rows enter or leave."""
        touched = self.bank.store(batch, keep)
        # A batch may name more classes than there are: all of them are then less work.
        self.refresh(None if len(self.scale) < len(touched) else touched.clamp(min=0))  # for −1, class 0 stays as it is

    def refresh(self, classes: Tensor | None) -> None:
        """Bring scale and bias of these classes (n,), or of all, up to date."""
        scale, bias = self.logit.of_classes(self.bank, classes)
        if classes is None:
            classes = torch.arange(len(scale), device=scale.device)
        self.scale.index_copy_(0, classes, scale)
        self.bias.index_copy_(0, classes, torch.where(self.bank.counts[classes] > 0, bias, self.bias_of_unseen))


class VmfSimilarity(BankSoftmax):
    """vMF-Sim: AvgSim in the first ``start`` iterations, then a softmax over the log-densities, Eqs. 10 to 14.

    A class of its own, since PyTorch asks classes, not objects, whether they have extra state.
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


def _of(buffer: Tensor, classes: Tensor | None) -> Tensor:
    return buffer if classes is None else buffer.index_select(0, classes)
