"""vMF-Sim, a similarity of PRISM; AvgSim replaces it in the first iterations."""

from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.backends.tracing import has_no_values
from robustdml_ops.ops.vmf import fit_classes, mean_directions
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.bank.row_store import ClassStatistics
from robustdml_ops.robust.checked_batch import CheckedBatch
from robustdml_ops.robust.prism.class_logits import LogitUpdate
from robustdml_ops.robust.prism.scores import ClassLogits, Scores
from robustdml_ops.robust.prism.similarities import AverageSimilarity
from robustdml_ops.robust.prism.vmf_classes import VmfClasses


class VmfSimilarity(AverageSimilarity):
    """vMF-Sim, Eqs. 10 to 14: a softmax over log-densities of von Mises–Fisher distributions, κ μ·x + log_peak − κ.

    The first ``start`` iterations use AvgSim. Both are updated from the beginning, and a counter on the device selects
    one: every step has the same operations, as a CUDA graph requires.
    """

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
        self.register_load_state_dict_pre_hook(_complete)  # type: ignore[no-untyped-call]
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

    def logits(self) -> ClassLogits:
        """Scale and bias of every class, of vMF-Sim once it has begun."""
        begun = self.begun
        if _is_readable(begun):
            return ClassLogits(self.vmf_scale, self.vmf_bias) if begun else ClassLogits(self.scale, self.bias)
        return ClassLogits(torch.where(begun, self.vmf_scale, self.scale), torch.where(begun, self.vmf_bias, self.bias))

    def own_logit(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """T of each unit row and its class without own copies, (B,): one distribution is fitted per sample."""
        average, begun = super().own_logit(X, own), self.begun
        if _is_readable(begun) and not begun:
            return average
        vmf = self.vmf
        fitted = fit_classes(*own, None, vmf.estimator, vmf.bias_correction, backend=vmf.backend)
        density = fitted.log_peak - fitted.kappa * (1 - (X * mean_directions(own.sums, fitted)).sum(1))
        return torch.where(begun, density, average)

    def advance(self, labels: Tensor) -> None:
        """Count the iteration."""
        self.iteration += 1

    def refresh(self, classes: Tensor | None) -> None:
        """Update these classes (n,), or all, for both similarities."""
        super().refresh(classes)
        self.refresh_vmf(classes)

    def refresh_vmf(self, classes: Tensor | None) -> None:
        """Fit these classes (n,), or all."""
        vmf, counts = self.vmf, self.bank.counts
        fitted = vmf.fit(self.bank, classes)
        update = LogitUpdate(
            classes, counts, self.vmf_scale, self.vmf_bias, -torch.inf, fitted, vmf.kappa, vmf.log_peak
        )
        self.write(update)

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


def _complete(similarity: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Fill in buffers that older states lack: the iteration from their extra state, zeros that `_refresh_all` sets."""
    extra, scale = (state_dict.get(prefix + name) for name in ("_extra_state", "scale"))
    if extra is not None and scale is not None:
        state_dict.setdefault(prefix + "iteration", extra[0].clone())
        state_dict.setdefault(prefix + "vmf_scale", torch.zeros_like(scale))
        state_dict.setdefault(prefix + "vmf_bias", torch.zeros_like(scale))


def _refresh_all(similarity: nn.Module, keys: object) -> None:
    """Compute scale and bias from the loaded bank."""
    assert isinstance(similarity, VmfSimilarity)
    if len(similarity.scale):
        with torch.no_grad():
            similarity.refresh_vmf(None)


def _is_readable(value: Tensor) -> bool:
    """Whether the host can read it without waiting for a GPU."""
    return value.device.type == "cpu" and not has_no_values(value)
