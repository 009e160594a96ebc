"""Backends of the von Mises–Fisher distribution; ``csrc/math/vmf.h`` has the functions of the native module."""

from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.triton_device import block_of, current, grid_of, launch
from robustdml_ops.ops.vmf.eager import EagerVmf
from robustdml_ops.ops.vmf.order import vmf_order
from robustdml_ops.ops.vmf.problem import BIAS_CORRECTIONS, ESTIMATORS, FitProblem, Fitted

BLOCK = 256


class NativeVmf(EagerVmf):
    """On the CPU and on CUDA devices."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        values = kappa.contiguous()
        out = torch.empty_like(values)
        module.call(f"vmf_{function}", out, _native_order(module.library, v, kappa.dtype), values, out, out.numel())
        return out

    def fit(self, problem: FitProblem) -> Fitted:
        dtype, fitted = problem.sums.dtype, Fitted.empty(problem.sums, problem.number)
        whole = problem.counts.dtype == torch.int64
        classes = getattr(module.library, f"VmfClasses_{module.SUFFIX[dtype]}")(
            sums=problem.sums.data_ptr(),
            D=problem.sums.shape[1],
            counts=problem.counts.data_ptr() if whole else 0,
            fractions=0 if whole else problem.counts.data_ptr(),
            classes=module.address(problem.classes),
            n=problem.number,
            dim=float(problem.dim),
            largest=problem.largest,
            estimator=ESTIMATORS.index(problem.estimator),
            correction=BIAS_CORRECTIONS.index(problem.bias_correction),
            **module.addresses(fitted._asdict()),
        )
        orders = (_native_order(module.library, problem.order, each) for each in (torch.float64, dtype))
        module.call("vmf_fit", problem.sums, classes, *orders)
        return fitted


@lru_cache(maxsize=256)
def _native_order(library: Any, v: float, dtype: torch.dtype) -> Any:
    """The order as a struct of the module; cached, since making it takes longer than the functions of a batch."""
    return getattr(library, f"VmfOrder_{module.SUFFIX[dtype]}")(**asdict(vmf_order(v, dtype)))


class TritonVmf(EagerVmf):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
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
        from robustdml_ops.ops.vmf.kernels import vmf_fit as kernel

        D, dtype, fitted = problem.sums.shape[1], problem.sums.dtype, Fitted.empty(problem.sums, problem.number)
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


BACKENDS: dict[str, EagerVmf] = {"native": NativeVmf(), "triton": TritonVmf(), "eager": EagerVmf()}
