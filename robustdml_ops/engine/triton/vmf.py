"""The functions of the von Mises–Fisher distribution in Triton, one launch each."""

import torch
from torch import Tensor

from robustdml_ops.engine.triton.device import current, grid_of
from robustdml_ops.engine.vmf_order import log_debye_coefficients, vmf_order

BLOCK = 256


def evaluate_vmf(function: str, v: float, kappa: Tensor) -> Tensor:
    """``function`` of order ``v`` at ``kappa`` ≥ 0 (float64 or float32, any shape); NaN elsewhere."""
    from robustdml_ops.engine.triton.kernels.vmf import vmf as kernel

    values = kappa.contiguous()
    out = torch.empty_like(values)
    if out.numel():
        with current(out):
            kernel[grid_of(out.numel(), BLOCK)](
                values, out, out.numel(), BLOCK=BLOCK, **constants(function, v, kappa.dtype)
            )
    return out


def constants(function: str, v: float, dtype: torch.dtype) -> dict[str, object]:
    """What is compiled into the kernel: an order of its own has a kernel of its own."""
    order = vmf_order(v, dtype)
    rows = log_debye_coefficients()[: order.debye_terms]
    return {
        "FUNCTION": function,
        "V": order.v,
        "BASE": order.base,
        "CONSTANT": order.constant,
        "LOG_SCALE": order.log_scale,
        "SERIES_BELOW": order.series_below,
        "DEBYE": tuple(float(c) for row in rows for c in row),
        "DEBYE_TERMS": order.debye_terms,
        "SERIES_TERMS": order.series_terms,
        "enable_fp_fusion": True,
    }
