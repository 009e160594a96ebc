"""The distribution of every class of a bank, and scale and bias of the logits scale_k x·Σ_k + bias_k, Σ_k its sum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import current, grid_of, launch
from robustdml_ops.engine.shards import ClassBuffers
from robustdml_ops.ops.self_check_cases import Inputs, Ops, register_cases
from robustdml_ops.ops.vmf.fit import fit_classes
from robustdml_ops.ops.vmf.problem import Fitted
from robustdml_ops.robust.bank.memory_bank import MemoryBank

_BLOCK = 128


@dataclass(frozen=True)
class LogitUpdate:
    """Classes whose rows have changed: AvgSim's scale 1/n, bias 0; or with ``fitted`` vMF-Sim's κ/‖Σ‖, log_peak − κ."""

    classes: Tensor | None  # (n,) int64, with repetitions; None: all
    counts: Tensor  # (C,) int64
    scale: Tensor  # (C,) of the type of the sums, out
    bias: Tensor  # (C,) as scale, out
    bias_of_unseen: float  # of classes without rows
    fitted: Fitted | None = None  # of each of the n classes
    kappa: Tensor | None = None  # (C,) as scale, out: of ``fitted``
    log_peak: Tensor | None = None  # (C,) as scale, out: of ``fitted``


def write_in_eager(update: LogitUpdate) -> None:
    """On every device, without a compiler."""
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


def write_in_triton(update: LogitUpdate) -> None:
    """In one launch, on CUDA devices; in Triton's interpreter also on the CPU."""
    from robustdml_ops.robust.prism.class_logits_kernel import class_logits as kernel

    count = len(update.counts if update.classes is None else update.classes)
    written = (update.classes, update.counts, update.scale, update.bias)
    fitted = (*(update.fitted or (None, None, None)), update.kappa, update.log_peak)
    constants = {"BIAS_OF_UNSEEN": update.bias_of_unseen, "TINY": torch.finfo(update.scale.dtype).tiny}
    if count:
        with current(update.scale):
            parameters = launch(BLOCK=_BLOCK, num_warps=4, num_stages=1)
            kernel[grid_of(count, _BLOCK)](*written, *fitted, count, **constants, **parameters)


LOGIT_WRITERS: dict[str, Callable[[LogitUpdate], None]] = {"triton": write_in_triton, "eager": write_in_eager}


def write_at(buffer: Tensor, classes: Tensor | None, values: Tensor) -> None:
    """Write ``values`` (n,) at ``classes`` of the buffer, or everywhere."""
    if classes is None:
        buffer.copy_(values)
    else:
        buffer.index_copy_(0, classes, values.to(buffer.dtype))


class VmfClasses(ClassBuffers):
    """Concentration κ of every class, and its log-density at the mean direction, which is that of ``bank.sums``.

    The log-density of x under class k, relative to the uniform distribution, is ``log_peak[k] − kappa[k]·(1 − cos)``.
    Both are (C,), and 0, the uniform distribution, for a class of fewer than two rows.

    Source: Liu et al. (PRISM), Eqs. 10 to 13.

    Parameters
    ----------
    num_classes, dim : int
        Number of classes C, and dimension D ≥ 2 of the vectors.
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


def _written(inputs: Inputs, backend: str) -> list[Tensor]:
    """Classes in part without rows, some of them twice."""
    counts = torch.arange(inputs.C, device=inputs.values.device) % 5
    scale, bias, kappa, log_peak = inputs.values.new_zeros(4, inputs.C)
    LOGIT_WRITERS[backend](LogitUpdate(None, counts, scale, bias, -1.0))
    first = scale.clone()
    some = torch.cat([inputs.labels, inputs.labels]) % inputs.C
    fitted = Fitted(inputs.kappa.detach()[some], inputs.values[some], 1 + inputs.values[some].double())
    LOGIT_WRITERS[backend](LogitUpdate(some, counts, scale, bias, -1.0, fitted, kappa, log_peak))
    return [first, scale, bias, kappa, log_peak]


_WRITE: Ops = {"class_logits": _written}
register_cases("class_logits", LOGIT_WRITERS, _WRITE, _WRITE, {})
