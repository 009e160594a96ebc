"""AvgSim and vMF-Sim: a softmax over the classes of the bank.

T(x, k), how well x fits class k, is linear in x for both: scale_k x·Σ_k + bias_k, with Σ_k the sum of the class's rows.
"""

from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.backends.choice import choose
from robustdml_ops.backends.tracing import has_no_values, in_registry
from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess
from robustdml_ops.ops.vmf import fit_classes, mean_directions
from robustdml_ops.robust.bank.class_sums import ClassStatistics
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.batch import Batch
from robustdml_ops.robust.buffers import TypedBuffers
from robustdml_ops.robust.prism.class_lines import EagerLineWriter, LinesProblem, LineWriter
from robustdml_ops.robust.prism.class_lines_triton import TritonLineWriter
from robustdml_ops.robust.prism.scores import FEWEST_ROWS, Scores, joint_class_lse, log_softmax, mean_cosine, own_class
from robustdml_ops.robust.prism.vmf_classes import VmfClasses

# Of samples with classes at a time: 16 MB.
_MOST_LOGITS = 2**22
LINE_WRITERS: dict[str, LineWriter] = {"triton": TritonLineWriter(), "eager": EagerLineWriter()}


class BankSoftmax(TypedBuffers):
    """AvgSim: a softmax over the mean cosines with the rows of each class of the bank, x·Σ/n, Eqs. 5 to 7.

    If the bank has a number of samples, T of the label's class is computed without up to ``max_copies`` copies of the
    sample itself. A class that is not in the bank adds nothing to the denominator with unseen "skip", e⁰ with "zero".
    """

    scale: Tensor
    bias: Tensor
    shards: OneProcess = ONE_PROCESS

    def __init__(self, bank: MemoryBank, max_copies: int | None, unseen: str, backend: str | None) -> None:
        super().__init__()
        self.bank = bank
        self.num_classes = bank.num_classes
        self.max_copies = max_copies
        self.backend = backend
        self.tries_other_labels = False
        self.bias_of_unseen = -torch.inf if unseen == "skip" else 0.0
        # The logits are scale_k x·Σ_k + bias_k; scale and bias change only for the classes that a batch touches.
        self.register_buffer("scale", torch.zeros(bank.num_classes, dtype=bank.sums.dtype))
        self.register_buffer("bias", torch.full((bank.num_classes,), self.bias_of_unseen, dtype=bank.sums.dtype))

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """Score the batch; a class without rows in the bank is not known."""
        labels, (scale, bias) = batch.labels, self.lines()
        lse, target = joint_class_lse(  # which checks the values of rows and labels, too
            self.shards,
            batch,
            self.bank.sums,
            scale=scale,
            bias=bias,
            exclude_target=True,
            normalize_proxies=False,
            backend=self.backend,
        )
        if self.bank.copies is None:
            judged, known = target, self.is_known(labels)
        else:
            own = own_class(self.bank, batch, self.max_copies)
            judged = self.shards.from_owners(self.of_own(batch.X, own), labels)
            rows = self.shards.from_owners(own.counts, labels)
            known = rows > 0
        scores = Scores(log_softmax(judged, lse, known), known)
        if not self.tries_other_labels:
            return scores
        if self.bank.copies is None:
            rows = self.shards.of_labels(self.bank.counts, labels)
        whole = lse.logaddexp(target)
        return scores._replace(rows=rows, of_other_labels=self._of_other_labels(batch, scale, bias, whole))

    def class_dimensions(self) -> dict[str, int]:
        """What has something for each class, and which dimension counts them."""
        return {"scale": 0, "bias": 0}

    def lines(self) -> tuple[Tensor, Tensor]:
        """Scale and bias of every class, (C,) each."""
        return self.scale, self.bias

    def likeliest(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Argmax_k T of unit rows X (B, D), (B,) int64, and the log of its softmax over the classes, (B,)."""
        scale, bias = self.lines()
        best, classes = X.new_full((len(X),), -torch.inf), torch.zeros(len(X), dtype=torch.int64, device=X.device)
        lse, step = best, max(_MOST_LOGITS // max(len(X), 1), 1)
        for start in range(0, len(scale), step):
            part = slice(start, start + step)
            logits = (X @ self.bank.sums[part].to(X.dtype).T) * scale[part] + bias[part]
            top, place = logits.max(1)
            classes = torch.where(top > best, place + start, classes)
            best, lse = best.maximum(top), lse.logaddexp(logits.logsumexp(1))
        return classes, torch.where(best > -torch.inf, best - lse, -torch.inf)

    def of_own(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """T of each unit row X (B, D) and a class of its own, (B,)."""
        return mean_cosine(X, own)

    def _of_other_labels(self, batch: Batch, scale: Tensor, bias: Tensor, lse: Tensor) -> Tensor:
        """Log P of a label that is surely wrong, if the sample's own is right: that of the sample half a batch away."""
        others, shards = batch.labels.roll(len(batch.labels) // 2), self.shards
        scale, sums, bias = (shards.at_labels(values, others) for values in (scale, self.bank.sums, bias))
        logit = shards.from_owners(scale * (batch.X * sums).sum(1) + bias, others)
        wrong = (others != batch.labels) & (shards.of_labels(self.bank.counts, others) >= FEWEST_ROWS)
        return (logit - lse).masked_fill(~wrong, torch.nan)

    def is_known(self, labels: Tensor) -> Tensor:
        """Whether there is anything to judge each sample by, (B,) bool, where own copies count."""
        return self.shards.of_labels(self.bank.counts, labels) > 0

    def advance(self, labels: Tensor) -> None:
        """The state changes in `enqueue` alone."""

    def enqueue(self, batch: Batch, keep: Tensor) -> None:
        """Store the kept rows, and bring up to date the classes that rows enter or leave."""
        touched = self.bank.store(batch, keep)
        # A batch may name more classes than there are: all of them are then less work.
        self.refresh(None if len(self.scale) < len(touched) else touched.clamp(min=0))  # for −1, class 0 stays as it is

    def refresh(self, classes: Tensor | None) -> None:
        """Bring scale and bias of these classes (n,), or of all, up to date."""
        if len(self.scale) == 0:
            return
        self.write(LinesProblem(classes, self.bank.counts, self.scale, self.bias, self.bias_of_unseen))

    def write(self, problem: LinesProblem) -> None:
        """Write scale and bias by the backend that stores the bank's rows, too."""
        backend = "eager" if in_registry(problem.scale) else self.bank.backend
        choose(LINE_WRITERS, backend, problem.scale.device, problem.scale.dtype).write(problem)


class VmfSimilarity(BankSoftmax):
    """vMF-Sim, Eqs. 10 to 14: a softmax over log-densities of von Mises–Fisher distributions, κ μ·x + log_peak − κ.

    In the first ``start`` iterations AvgSim stands in. Both are kept up to date from the beginning, and which of them
    counts is told by a counter on the device: so a step is the same operations in every iteration, and can be replayed
    as a CUDA graph.
    """

    iteration: Tensor
    vmf_scale: Tensor
    vmf_bias: Tensor

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
        # Scale and bias follow from bank and start, and are saved all the same: what makes a module without memory and
        # gives it saved tensors, as load_state_dict(assign=True) does, would leave them without values.
        self.register_buffer("iteration", torch.zeros((), dtype=torch.int64))
        self.register_buffer("vmf_scale", torch.zeros_like(self.scale))
        self.register_buffer("vmf_bias", torch.full_like(self.bias, -torch.inf))
        self.register_load_state_dict_pre_hook(_complete)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_refresh_all)  # type: ignore[no-untyped-call]

    def class_dimensions(self) -> dict[str, int]:
        """As of :class:`BankSoftmax`."""
        return {**super().class_dimensions(), "vmf_scale": 0, "vmf_bias": 0}

    @property
    def begun(self) -> Tensor:
        """Whether vMF-Sim counts, () bool."""
        return self.iteration >= self.start

    @property
    def kappa(self) -> Tensor:
        """Concentration of every class, (C,); 0 until vMF-Sim has begun."""
        return torch.where(self.begun, self.vmf.kappa, 0)

    def score(self, batch: Batch, proxies: Tensor | None) -> Scores:
        """As of :class:`BankSoftmax`, and whether AvgSim stands in."""
        return super().score(batch, proxies)._replace(stands_in=self.iteration < self.start)

    def lines(self) -> tuple[Tensor, Tensor]:
        """As of :class:`BankSoftmax`."""
        begun = self.begun
        if _may_look_at(begun):
            return (self.vmf_scale, self.vmf_bias) if begun else (self.scale, self.bias)
        return torch.where(begun, self.vmf_scale, self.scale), torch.where(begun, self.vmf_bias, self.bias)

    def of_own(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """As of :class:`BankSoftmax`; one distribution is fitted per sample."""
        average, begun = super().of_own(X, own), self.begun
        if _may_look_at(begun) and not begun:
            return average
        vmf = self.vmf
        fitted = fit_classes(*own, None, vmf.estimator, vmf.bias_correction, backend=vmf.backend)
        density = fitted.log_peak - fitted.kappa * (1 - (X * mean_directions(own.sums, fitted)).sum(1))
        return torch.where(begun, density, average)

    def advance(self, labels: Tensor) -> None:
        """Count the iteration."""
        self.iteration += 1

    def refresh(self, classes: Tensor | None) -> None:
        """As of :class:`BankSoftmax`, of both similarities."""
        super().refresh(classes)
        self.refresh_vmf(classes)

    def refresh_vmf(self, classes: Tensor | None) -> None:
        """Fit these classes (n,), or all, anew."""
        if len(self.scale) == 0:
            return
        fitted, vmf = self.vmf.fit(self.bank, classes), self.vmf
        lines = self.vmf_scale, self.vmf_bias, -torch.inf
        self.write(LinesProblem(classes, self.bank.counts, *lines, fitted, vmf.kappa, vmf.log_peak))

    def get_extra_state(self) -> Tensor:
        """Iteration and start."""
        return torch.stack([self.iteration, torch.full_like(self.iteration, self.start)])

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the iteration; ValueError where vMF-Sim has begun by the saved start and not by this one."""
        iteration, start = state.tolist()
        if (iteration >= start) != (iteration >= self.start):
            raise ValueError(
                f"vmf_start={self.start}, but the state is of iteration {iteration} with vmf_start={start}: "
                "give the latter"
            )
        self.iteration.fill_(iteration)


def _complete(similarity: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """A state may have the iteration in the extra state alone; scale and bias follow once it is loaded."""
    extra, scale = (state_dict.get(prefix + name) for name in ("_extra_state", "scale"))
    if extra is not None and scale is not None:
        state_dict.setdefault(prefix + "iteration", extra[0].clone())
        state_dict.setdefault(prefix + "vmf_scale", torch.zeros_like(scale))
        state_dict.setdefault(prefix + "vmf_bias", torch.zeros_like(scale))


def _refresh_all(similarity: nn.Module, keys: object) -> None:
    """Once a state is loaded: scale and bias are those of its bank."""
    assert isinstance(similarity, VmfSimilarity)
    with torch.no_grad():
        similarity.refresh_vmf(None)


def _may_look_at(value: Tensor) -> bool:
    """Whether its value is at hand: a GPU would be waited for."""
    return value.device.type == "cpu" and not has_no_values(value)
