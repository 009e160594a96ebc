"""The functions of the von Mises–Fisher distribution in Triton, one launch each."""

import torch
from torch import Tensor

from robustdml_ops.triton_device import current, grid_of
from robustdml_ops.vmf.order import log_debye_coefficients, vmf_order
from robustdml_ops.vmf.problem import VmfBackend

BLOCK = 256


class TritonVmf(VmfBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """As :meth:`VmfBackend.evaluate_vmf`."""
        from robustdml_ops.vmf.kernels import vmf as kernel

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
