"""The functions of the von Mises–Fisher distribution in Triton, one launch each."""

import torch
from torch import Tensor

from robustdml_ops.backends.triton_device import block_of, current, grid_of, launch
from robustdml_ops.ops.vmf.order import vmf_order
from robustdml_ops.ops.vmf.problem import FitProblem, Fitted, VmfBackend

BLOCK = 256


class TritonVmf(VmfBackend):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """One function of every κ."""
        from robustdml_ops.ops.vmf.kernels import vmf as kernel

        values = kappa.contiguous()
        out = torch.empty_like(values)
        if out.numel():
            with current(out):
                kernel[grid_of(out.numel(), BLOCK)](
                    values, out, out.numel(), function, vmf_order(v, kappa.dtype), BLOCK, enable_fp_fusion=True
                )
        return out

    def fit(self, problem: FitProblem) -> Fitted:
        """κ of every class."""
        from robustdml_ops.ops.vmf.fit_kernel import vmf_fit as kernel

        D, dtype, fitted = problem.sums.shape[1], problem.sums.dtype, Fitted.empty(problem)
        if problem.number:
            # Four classes a warp: a batch of 256 touches 512 classes, hence 128 programs.
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
                    ORDER=vmf_order(problem.order, dtype),
                    ORDER_64=vmf_order(problem.order, torch.float64),
                    **parameters,
                )
        return fitted
