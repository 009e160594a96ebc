"""Scale and bias of classes, brought up to date: what every backend is given, and plain PyTorch's way."""

from dataclasses import dataclass

import torch
from torch import Tensor

from robustdml_ops.ops.vmf.problem import Fitted


@dataclass(frozen=True)
class LinesProblem:
    """The logits scale_k x·Σ_k + bias_k of classes whose rows have changed; what follows from the counts or a fit."""

    classes: Tensor | None  # (n,) int64, with repetitions; None: all
    counts: Tensor  # (C,) int64
    scale: Tensor  # (C,) of the type of the sums, out
    bias: Tensor  # (C,) as scale, out
    bias_of_unseen: float  # of classes without rows
    fitted: Fitted | None = None  # of each of the n classes: vMF-Sim; None: AvgSim
    kappa: Tensor | None = None  # (C,) as scale, out: what was fitted
    log_peak: Tensor | None = None  # (C,) as scale, out


class LineWriter:
    """Base class of every backend that brings lines up to date."""

    def write(self, problem: LinesProblem) -> None:
        """AvgSim: scale 1/n and bias 0. vMF-Sim: scale κ/‖Σ‖ and bias log_peak − κ, and κ and log_peak themselves.

        The scale of vMF-Sim divides by ‖Σ‖: then no sweep has to normalise the sums. A sum of length 0 has κ = 0.
        """
        raise NotImplementedError


class EagerLineWriter(LineWriter):
    """On every device, without a compiler."""

    def write(self, problem: LinesProblem) -> None:
        """As :meth:`LineWriter.write`."""
        classes, fitted = problem.classes, problem.fitted
        counts = problem.counts if classes is None else problem.counts[classes]
        if fitted is None:
            write_at(problem.scale, classes, counts.clamp(min=1).to(problem.scale.dtype).reciprocal())
            if problem.bias_of_unseen != 0:
                write_at(problem.bias, classes, torch.where(counts > 0, 0.0, problem.bias_of_unseen))
            return
        assert problem.kappa is not None and problem.log_peak is not None
        kappa, log_peak, length = fitted
        write_at(problem.kappa, classes, kappa)
        write_at(problem.log_peak, classes, log_peak)
        write_at(problem.scale, classes, kappa / length.clamp(min=torch.finfo(kappa.dtype).tiny))
        write_at(problem.bias, classes, torch.where(counts > 0, log_peak - kappa, problem.bias_of_unseen))


def write_at(buffer: Tensor, classes: Tensor | None, values: Tensor) -> None:
    """Into these places (n,) of ``buffer``, or into all."""
    if classes is None:
        buffer.copy_(values)
    else:
        buffer.index_copy_(0, classes, values.to(buffer.dtype))
