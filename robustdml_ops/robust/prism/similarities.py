"""The similarities of PRISM: ProxySim; AvgSim; and vMF-Sim, which AvgSim replaces in the first iterations."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustdml_ops.backends.dispatch import choose, has_no_values, in_registry
from robustdml_ops.engine.shards import ClassBuffers, OneProcess
from robustdml_ops.ops import class_lse
from robustdml_ops.ops.vmf.fit import fit_classes, mean_directions
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.bank.row_store import ClassStatistics
from robustdml_ops.robust.checked_batch import CheckedBatch
from robustdml_ops.robust.prism.class_logits import LOGIT_WRITERS, LogitUpdate, VmfClasses
from robustdml_ops.robust.prism.thresholds import FEWEST_ROWS, Scores

_MOST_LOGITS = 2**22  # in a chunk of `likeliest_classes`: 16 MB


def joint_class_lse(shards: OneProcess, batch: CheckedBatch, proxies: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    """:func:`class_lse` over the classes of all processes; it checks the values of rows and labels."""
    lse = class_lse(batch.X, proxies, shards.to_local_labels(batch.labels), elsewhere=shards.divided, **settings)
    return shards.join_log_sum_exp(*lse, batch.labels)


def log_softmax(target: Tensor, others: Tensor, known: Tensor) -> Tensor:
    """Log P_clean from the label's logit and the log-sum-exp of all other classes; 0 for an unknown class."""
    # The logit minus the log-sum-exp of all classes would be rounded to 0 where P_clean is nearly 1.
    return torch.where(known, functional.logsigmoid(target - others), 0)


def likeliest_classes(X: Tensor, sums: Tensor, scale: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Argmax_k T of unit rows X, (B,) int64, and the log of its softmax over the classes, (B,)."""
    best, classes = X.new_full((len(X),), -torch.inf), torch.zeros(len(X), dtype=torch.int64, device=X.device)
    lse, step = best, max(_MOST_LOGITS // max(len(X), 1), 1)
    for start in range(0, len(sums), step):
        chunk = slice(start, start + step)
        T = (X @ sums[chunk].to(X.dtype).T) * scale[chunk] + bias[chunk]
        top, place = T.max(1)
        classes = torch.where(top > best, place + start, classes)
        best, lse = best.maximum(top), lse.logaddexp(T.logsumexp(1))
    return classes, torch.where(best > -torch.inf, best - lse, -torch.inf)


def scores_under_other_labels(
    bank: MemoryBank, batch: CheckedBatch, logits: tuple[Tensor, Tensor], lse: Tensor
) -> Tensor:
    """Score each sample under the label of the sample B/2 places away, which is wrong if its own is right."""
    others, shards = batch.labels.roll(len(batch.labels) // 2), bank.shards
    scale, sums, bias = (shards.local_at_labels(values, others) for values in (logits[0], bank.sums, logits[1]))
    logit = shards.take_from_owners(scale * (batch.X * sums).sum(1) + bias, others)
    judged = (others != batch.labels) & (shards.gather_at_labels(bank.counts, others) >= FEWEST_ROWS)
    return (logit - lse).masked_fill(~judged, torch.nan)


class ProxySimilarity(ClassBuffers):
    """ProxySim: a softmax over the cosines with the nearest proxy of each class, Eqs. 8 and 9."""

    observed: Tensor  # (C,) bool: classes that a batch had
    class_buffers = ("observed",)

    def __init__(self, num_classes: int, backend: str | None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.backend = backend
        self.register_buffer("observed", torch.zeros(num_classes, dtype=torch.bool))

    def score(self, batch: CheckedBatch, proxies: Tensor | None) -> Scores:
        """Score the batch against ``proxies`` (C, D) or (C, H, D); a class is known once a batch had it."""
        if proxies is None:
            raise ValueError('proxies are missing, and similarity="proxy" needs them: pass (C, D) or (C, H, D)')
        if not isinstance(proxies, Tensor):
            raise TypeError(f"proxies must be a torch.Tensor, not {type(proxies).__name__}")
        proxies = self.shards.select_local(proxies)
        shape, (C, D) = tuple(proxies.shape), (len(self.observed), batch.X.shape[1])
        if len(shape) not in (2, 3) or (shape[0], shape[-1]) != (C, D) or not proxies.is_floating_point():
            turned = ": give its transpose, .T" if shape == (D, C) else ""
            raise ValueError(
                f"proxies must be floating point of shape ({C}, {D}) or ({C}, H, {D}), got {shape} of "
                f"{proxies.dtype}{turned}"
            )
        pooling = "none" if len(shape) == 2 else "max"
        lse, target = joint_class_lse(
            self.shards, batch, proxies, pooling=pooling, exclude_target=True, backend=self.backend
        )
        known = self.shards.gather_at_labels(self.observed, batch.labels)
        return Scores(log_softmax(target, lse, known), known)

    def advance(self, labels: Tensor) -> None:
        """Mark the classes of a batch that has been scored as known."""
        if not self.shards.divided:
            self.observed.index_fill_(0, labels, True)
        elif len(self.observed):
            here = self.shards.to_local_labels(labels)
            counts = torch.zeros(len(self.observed), dtype=torch.int64, device=labels.device)
            self.observed |= counts.index_add_(0, here.clamp(min=0), (here >= 0).long()) > 0

    def enqueue(self, batch: CheckedBatch, keep: Tensor) -> None:
        """Do nothing: there is no bank."""


class AverageSimilarity(ClassBuffers):
    """AvgSim: a softmax over the mean cosines with the rows of each class of the bank, x·Σ/n, Eqs. 5 to 7.

    If the bank has a number of samples, T of the label's class is computed without up to ``max_copies`` copies of the
    sample itself. A class that is not in the bank adds nothing to the denominator with unseen "skip", e⁰ with "zero".
    """

    scale: Tensor  # (C,), as bias
    bias: Tensor
    class_buffers: ClassVar[tuple[str, ...]] = ("scale", "bias")
    with_other_labels = False

    def __init__(self, bank: MemoryBank, max_copies: int | None, unseen: str, backend: str | None) -> None:
        super().__init__()
        self.bank = bank
        self.num_classes = bank.num_classes
        self.max_copies = max_copies
        self.backend = backend
        self.bias_of_unseen = -torch.inf if unseen == "skip" else 0.0
        self.unseen_class = {"bias": self.bias_of_unseen}
        self.register_buffer("scale", torch.zeros(bank.num_classes, dtype=bank.sums.dtype))
        self.register_buffer("bias", torch.full((bank.num_classes,), self.bias_of_unseen, dtype=bank.sums.dtype))

    def score(self, batch: CheckedBatch, proxies: Tensor | None) -> Scores:
        """Score the batch; a class without rows in the bank is not known."""
        bank, shards, labels, logits = self.bank, self.shards, batch.labels, self.logits()
        lse, target = joint_class_lse(
            shards,
            batch,
            bank.sums,
            scale=logits[0],
            bias=logits[1],
            exclude_target=True,
            normalize_proxies=False,
            backend=self.backend,
        )
        if self.max_copies is None:
            judged, rows = target, shards.gather_at_labels(bank.counts, labels)
        else:
            assert batch.sample_ids is not None
            own = bank.others_of_class(batch.sample_ids, labels, self.max_copies)
            judged = shards.take_from_owners(self.own_logit(batch.X, own), labels)
            rows = shards.take_from_owners(own.counts, labels)
        known = rows > 0
        scores = Scores(log_softmax(judged, lse, known), known)
        if not self.with_other_labels:
            return scores
        others = scores_under_other_labels(bank, batch, logits, lse.logaddexp(target))
        return scores._replace(class_rows=rows, other_labels=others)

    def own_logit(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """T of each unit row and its class without own copies, (B,): the mean cosine; 0 without rows."""
        return (X * own.sums).sum(1) / own.counts.clamp(min=1)

    def logits(self) -> tuple[Tensor, Tensor]:
        """Scale and bias, (C,) each, in T(x, k) = scale_k x·Σ_k + bias_k, where Σ_k sums the bank's rows of class k."""
        return self.scale, self.bias

    def advance(self, labels: Tensor) -> None:
        """Do nothing: the state changes in `enqueue` alone."""

    def enqueue(self, batch: CheckedBatch, keep: Tensor) -> None:
        """Store the kept rows, and update the classes that rows enter or leave."""
        touched = self.bank.store(batch, keep)
        if len(self.scale):
            # A large batch may list more classes than there are: then all are updated. For −1, class 0 is.
            self.refresh(None if len(self.scale) < len(touched) else touched.clamp(min=0))

    def refresh(self, classes: Tensor | None) -> None:
        """Update scale and bias of these classes (n,), or of all, by the backend that stores the bank's rows."""
        backend = "eager" if in_registry(self.scale) else self.bank.backend
        write = choose(LOGIT_WRITERS, backend, self.scale.device, self.scale.dtype)
        for update in self.updates(classes):
            write(update)

    def updates(self, classes: Tensor | None) -> list[LogitUpdate]:
        """The writes of `refresh`."""
        return [LogitUpdate(classes, self.bank.counts, self.scale, self.bias, self.bias_of_unseen)]


class VmfSimilarity(AverageSimilarity):
    """vMF-Sim, Eqs. 10 to 14: a softmax over log-densities of von Mises–Fisher distributions, κ μ·x + log_peak − κ."""

    # Both similarities are kept from the beginning: a counter on the device selects one, as a CUDA graph requires.

    iteration: Tensor  # () int64
    vmf_scale: Tensor  # (C,), as vmf_bias
    vmf_bias: Tensor
    class_buffers = ("scale", "bias", "vmf_scale", "vmf_bias")

    def __init__(
        self,
        bank: MemoryBank,
        max_copies: int | None,
        start: int,
        estimator: str,
        bias_correction: str,
        backend: str | None,
        with_other_labels: bool,
    ) -> None:
        super().__init__(bank, max_copies, "skip", backend)
        self.unseen_class["vmf_bias"] = -torch.inf
        self.start = start
        self.with_other_labels = with_other_labels
        self.vmf = VmfClasses(
            bank.num_classes, bank.embedding_size, estimator, bias_correction, backend=backend, dtype=bank.sums.dtype
        )
        # Scale and bias follow from the bank; they are saved because load_state_dict(assign=True) on the meta device
        # fills saved buffers alone.
        self.register_buffer("iteration", torch.zeros((), dtype=torch.int64))
        self.register_buffer("vmf_scale", torch.zeros_like(self.scale))
        self.register_buffer("vmf_bias", torch.full_like(self.bias, -torch.inf))
        self.register_load_state_dict_post_hook(_refresh_all)  # type: ignore[no-untyped-call]

    @property
    def begun(self) -> Tensor:
        """Whether vMF-Sim has replaced AvgSim, () bool."""
        return self.iteration >= self.start

    @property
    def kappa(self) -> Tensor:
        """Concentration of every class, (C,); 0 until vMF-Sim has begun."""
        return torch.where(self.begun, self.vmf.kappa, 0)

    def score(self, batch: CheckedBatch, proxies: Tensor | None) -> Scores:
        """Score the batch; a class without rows in the bank is not known."""
        return super().score(batch, proxies)._replace(vmf_pending=self.iteration < self.start)

    def logits(self) -> tuple[Tensor, Tensor]:
        """Scale and bias of every class, of vMF-Sim once it has begun."""
        begun = self.begun
        if _is_known(begun):
            return (self.vmf_scale, self.vmf_bias) if begun else (self.scale, self.bias)
        return torch.where(begun, self.vmf_scale, self.scale), torch.where(begun, self.vmf_bias, self.bias)

    def own_logit(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """T of each unit row and its class without own copies, (B,): one distribution is fitted per sample."""
        average, begun = super().own_logit(X, own), self.begun
        if _is_known(begun) and not begun:
            return average
        vmf = self.vmf
        fitted = fit_classes(*own, None, vmf.estimator, vmf.bias_correction, backend=vmf.backend)
        density = fitted.log_peak - fitted.kappa * (1 - (X * mean_directions(own.sums, fitted)).sum(1))
        return torch.where(begun, density, average)

    def advance(self, labels: Tensor) -> None:
        """Count the iteration."""
        self.iteration += 1

    def updates(self, classes: Tensor | None) -> list[LogitUpdate]:
        """The writes of `refresh` for both similarities."""
        vmf, counts, fitted = self.vmf, self.bank.counts, self.vmf.fit(self.bank, classes)
        of_vmf = (self.vmf_scale, self.vmf_bias, -torch.inf, fitted, vmf.kappa, vmf.log_peak)
        return [*super().updates(classes), LogitUpdate(classes, counts, *of_vmf)]

    def get_extra_state(self) -> Tensor:
        """Iteration and start."""
        return torch.stack([self.iteration, torch.full_like(self.iteration, self.start)])

    def set_extra_state(self, state: Tensor) -> None:
        """Load the iteration; ValueError if vMF-Sim has begun by only one of the saved start and this one."""
        iteration, start = state.tolist()
        if (iteration >= start) != (iteration >= self.start):
            raise ValueError(
                f"vmf_start={self.start}, but the state is of iteration {iteration} with vmf_start={start}: "
                "give the latter"
            )
        self.iteration.fill_(iteration)


def _is_known(begun: Tensor) -> bool:
    """Whether the value can be read: nothing waits for a GPU."""
    return begun.device.type == "cpu" and not has_no_values(begun)


def _refresh_all(similarity: nn.Module, keys: object) -> None:
    """Compute scale and bias from the loaded bank."""
    assert isinstance(similarity, VmfSimilarity)
    if len(similarity.scale):
        with torch.no_grad():
            similarity.refresh(None)
