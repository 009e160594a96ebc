"""T(x, k), how well x fits class k of the bank: by mean cosine (AvgSim) or by log-density (vMF-Sim).

Both have the form scale_k x·Σ_k + bias_k, with Σ_k the sum of the unit rows of the class.
"""

import torch
from torch import Tensor

from robustdml_ops.ops import fit_vmf, vmf_log_peak
from robustdml_ops.robust.class_sums import ClassStatistics
from robustdml_ops.robust.memory_bank import MemoryBank
from robustdml_ops.robust.vmf_classes import VmfClasses


class MeanCosine:
    """AvgSim: the mean cosine of x with the n rows of the class, x·Σ/n, Eqs. 5 and 6."""

    def of_classes(self, bank: MemoryBank, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scale and bias, (n,) each, of these classes of the bank (n,); None: of all."""
        scale = _of(bank.counts, classes).clamp(min=1).to(bank.sums.dtype).reciprocal()
        return scale, torch.zeros_like(scale)

    def of_own(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """T of each unit row X (B, D) and a class of its own, (B,); 0 where that is empty."""
        return (X * own.sums).sum(1) / own.counts.clamp(min=1)


class VmfDensity:
    """vMF-Sim: the log-density of the class's von Mises–Fisher distribution, κ μ·x + log_peak − κ, Eqs. 10 to 13."""

    def __init__(self, vmf: VmfClasses) -> None:
        self.vmf = vmf

    def of_classes(self, bank: MemoryBank, classes: Tensor | None) -> tuple[Tensor, Tensor]:
        """Fit these classes of the bank anew; scale and bias as of :class:`MeanCosine`."""
        self.vmf.refresh(bank, classes)
        sums, kappa, log_peak = (_of(buffer, classes) for buffer in (bank.sums, self.vmf.kappa, self.vmf.log_peak))
        # The scale divides by ‖Σ‖: then no sweep has to normalise the sums. A sum of length 0 has κ = 0.
        length = torch.linalg.vector_norm(sums, dim=1)
        return kappa / length.clamp(min=torch.finfo(kappa.dtype).tiny), log_peak - kappa

    def of_own(self, X: Tensor, own: ClassStatistics) -> Tensor:
        """As of :class:`MeanCosine`; one distribution is fitted per sample."""
        vmf = self.vmf
        mean_direction, kappa = fit_vmf(*own, None, vmf.estimator, vmf.bias_correction, backend=vmf.backend)
        peak = vmf_log_peak(vmf.dim, kappa, backend=vmf.backend)
        return peak - kappa * (1 - (X * mean_direction).sum(1))


def _of(buffer: Tensor, classes: Tensor | None) -> Tensor:
    return buffer if classes is None else buffer.index_select(0, classes)
