"""Update of scale and bias of the logits scale_k x·Σ_k + bias_k, where Σ_k sums the bank's rows of class k."""

from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml_ops.ops.vmf.problem import Fitted


@dataclass(frozen=True)
class LogitUpdate:
    """Classes whose rows have changed; without ``fitted`` AvgSim's logits are written, with it vMF-Sim's."""

    classes: Tensor | None  # (n,) int64, with repetitions; None: all
    counts: Tensor  # (C,) int64
    scale: Tensor  # (C,) of the type of the sums, out
    bias: Tensor  # (C,) as scale, out
    bias_of_unseen: float  # of classes without rows
    fitted: Fitted | None = None  # of each of the n classes
    kappa: Tensor | None = None  # (C,) as scale, out: of ``fitted``
    log_peak: Tensor | None = None  # (C,) as scale, out: of ``fitted``


class LogitWriter:
    """Base class of the backends."""

    def write(self, update: LogitUpdate) -> None:
        """AvgSim: scale 1/n and bias 0. vMF-Sim: scale κ/‖Σ‖ and bias log_peak − κ, and κ and log_peak themselves."""
        raise NotImplementedError


class EagerLogitWriter(LogitWriter):
    """On every device, without a compiler."""

    def write(self, update: LogitUpdate) -> None:
        """Write in plain PyTorch."""
        classes, fitted = update.classes, update.fitted
        counts = update.counts if classes is None else update.counts[classes]
        if fitted is None:
            write_at(update.scale, classes, counts.clamp(min=1).to(update.scale.dtype).reciprocal())
            if update.bias_of_unseen != 0:
                write_at(update.bias, classes, torch.where(counts > 0, 0.0, update.bias_of_unseen))
            return
        assert update.kappa is not None and update.log_peak is not None
        kappa, log_peak, length = fitted
        write_at(update.kappa, classes, kappa)
        write_at(update.log_peak, classes, log_peak)
        write_at(update.scale, classes, kappa / length.clamp(min=torch.finfo(kappa.dtype).tiny))
        write_at(update.bias, classes, torch.where(counts > 0, log_peak - kappa, update.bias_of_unseen))


def write_at(buffer: Tensor, classes: Tensor | None, values: Tensor) -> None:
    """Write ``values`` (n,) at ``classes`` of the buffer, or everywhere."""
    if classes is None:
        buffer.copy_(values)
    else:
        buffer.index_copy_(0, classes, values.to(buffer.dtype))
