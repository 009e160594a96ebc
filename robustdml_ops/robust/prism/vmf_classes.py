"""The von Mises–Fisher distribution of every class of a memory bank."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.shards import ClassBuffers
from robustdml_ops.ops.vmf.fit import fit_classes
from robustdml_ops.ops.vmf.problem import Fitted
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.prism.class_logits import write_at


class VmfClasses(ClassBuffers):
    """Concentration κ of every class, and its log-density at the mean direction, which is that of ``bank.sums``.

    The log-density of x under class k, relative to the uniform distribution, is ``log_peak[k] − kappa[k]·(1 − cos)``.
    Both are (C,), and 0, the uniform distribution, for a class of fewer than two rows.

    Source: Liu et al. (PRISM), Eqs. 10 to 13.

    Parameters
    ----------
    num_classes, dim : int
        C, and D ≥ 2.
    estimator, bias_correction, backend : str
        As in :func:`robustdml_ops.ops.fit_vmf`.
    dtype : torch.dtype
        Type of κ and log_peak: that of the bank's sums.

    Examples
    --------
    >>> import torch
    >>> bank, classes = MemoryBank(2, 3, capacity=8), VmfClasses(2, 3)
    >>> x = torch.nn.functional.normalize(torch.tensor([[9.0, 1.0, 0.0], [9.0, 0.0, 1.0], [9.0, -1.0, 0.0]]))
    >>> classes.refresh(bank, bank.enqueue(x, torch.tensor([1, 1, 1])))
    >>> classes.kappa
    tensor([  0.0000, 122.4969])
    """

    kappa: Tensor
    log_peak: Tensor
    class_buffers = ("kappa", "log_peak")

    def __init__(
        self,
        num_classes: int,
        dim: int,
        estimator: str = "newton",
        bias_correction: str = "u",
        *,
        backend: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.num_classes, self.dim = num_classes, dim
        self.estimator, self.bias_correction = estimator, bias_correction
        self.backend = backend
        self.register_buffer("kappa", torch.zeros(num_classes, dtype=dtype))
        self.register_buffer("log_peak", torch.zeros(num_classes, dtype=dtype))

    @torch.no_grad()
    def refresh(self, bank: MemoryBank, touched: Tensor | None = None) -> None:
        """Fit the classes ``touched``, as :meth:`MemoryBank.enqueue` of a bank of as many classes returns them, or all.

        Raises
        ------
        ValueError
            An estimator or bias correction that :func:`robustdml_ops.ops.fit_vmf` does not know.
        """
        # For −1, class 0 is fitted and stays as it is.
        classes = None if touched is None else touched.clamp(min=0)
        fitted = self.fit(bank, classes)
        write_at(self.kappa, classes, fitted.kappa)
        write_at(self.log_peak, classes, fitted.log_peak)

    def fit(self, bank: MemoryBank, classes: Tensor | None) -> Fitted:
        """The distributions of ``classes`` (n,) that exist, or of all; stores nothing."""
        return fit_classes(
            bank.sums, bank.counts, self.dim, self.estimator, self.bias_correction, classes, backend=self.backend
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Refuse κ that is negative, infinite or NaN: it would make every score NaN."""
        kappa = state_dict.get(prefix + "kappa")
        if kappa is not None and not (valid := (kappa >= 0) & kappa.isfinite()).all():
            row = int((~valid).nonzero()[0])
            raise ValueError(
                f"the saved kappa[{row}] = {float(kappa[row])}: it must be at least 0 and finite; load an earlier "
                "state, or refresh() from the bank"
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments)
