"""The functions of the von Mises–Fisher distribution in Triton, one launch each."""

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import block_of, current, grid_of, launch
from robustdml_ops.ops.vmf.order import log_debye_coefficients, vmf_order
from robustdml_ops.ops.vmf.problem import BANERJEE_ERROR, NEWTON_STEPS, FitProblem, Fitted, VmfBackend

BLOCK = 256


class TritonVmf(VmfBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """As :meth:`VmfBackend.evaluate_vmf`."""
        from robustdml_ops.ops.vmf.kernels import vmf as kernel

        values = kappa.contiguous()
        out = torch.empty_like(values)
        if out.numel():
            with current(out):
                kernel[grid_of(out.numel(), BLOCK)](
                    values, out, out.numel(), BLOCK=BLOCK, **constants(function, v, kappa.dtype)
                )
        return out

    def fit(self, problem: FitProblem) -> Fitted:
        """As :meth:`VmfBackend.fit`."""
        from robustdml_ops.ops.vmf.fit_kernel import vmf_fit as kernel

        D, dtype, fitted = problem.sums.shape[1], problem.sums.dtype, Fitted.empty(problem)
        if problem.number:
            # A warp takes four classes: a batch of 256 touches 512, which then are 128 programs.
            parameters = launch(BLOCK_R=4, BLOCK_D=block_of(D, 128), num_warps=1, num_stages=1)
            with current(problem.sums):
                kernel[grid_of(problem.number, 4)](
                    sums=problem.sums,
                    counts=problem.counts,
                    classes=problem.classes,
                    **fitted._asdict(),
                    count=problem.number,
                    D=D,
                    DIM=float(problem.dim),
                    LARGEST=problem.largest,
                    ESTIMATOR=problem.estimator,
                    CORRECTION=problem.bias_correction,
                    NEWTON_STEPS=NEWTON_STEPS,
                    BANERJEE_ERROR=BANERJEE_ERROR,
                    **order_constants(problem.order, dtype),
                    **{f"{name}_64": value for name, value in _of_type(problem.order, torch.float64).items()},
                    **parameters,
                )
        return fitted


def constants(function: str, v: float, dtype: torch.dtype) -> dict[str, object]:
    """What is compiled into the kernel: an order of its own has a kernel of its own."""
    return {"FUNCTION": function, "enable_fp_fusion": True, **order_constants(v, dtype)}


def order_constants(v: float, dtype: torch.dtype) -> dict[str, object]:
    """Constants of an order."""
    order = vmf_order(v, dtype)
    return {"V": order.v, "BASE": order.base, "LOG_SCALE": order.log_scale, **_of_type(v, dtype)}


def _of_type(v: float, dtype: torch.dtype) -> dict[str, object]:
    """Those that differ between float32 and float64."""
    order = vmf_order(v, dtype)
    rows = log_debye_coefficients()[: order.debye_terms]
    return {
        "CONSTANT": order.constant,
        "SERIES_BELOW": order.series_below,
        "DEBYE": tuple(float(c) for row in rows for c in row),
        "DEBYE_TERMS": order.debye_terms,
        "SERIES_TERMS": order.series_terms,
    }
