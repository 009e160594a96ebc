"""The functions of the von Mises–Fisher distribution in the native module (``csrc/math/vmf.h``), on CPU and GPU."""

from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.ops.vmf.order import vmf_order
from robustdml_ops.ops.vmf.problem import BIAS_CORRECTIONS, ESTIMATORS, FitProblem, Fitted, VmfBackend


class NativeVmf(VmfBackend):
    """On the CPU and on CUDA devices."""

    def evaluate_vmf(self, function: str, v: float, kappa: Tensor) -> Tensor:
        """One function of every κ."""
        suffix = module.SUFFIX[kappa.dtype]
        order = _native_order(module.library, v, kappa.dtype)
        values = kappa.contiguous()
        out = torch.empty_like(values)
        arguments = (order, values.data_ptr(), out.data_ptr(), out.numel())
        if module.on_gpu(out):
            with module.current_stream(out.device) as stream:
                getattr(module.library, f"vmf_{function}_cuda_{suffix}")(*arguments, stream)
        else:
            getattr(module.library, f"vmf_{function}_{suffix}")(*arguments, torch.get_num_threads())
        return out

    def fit(self, problem: FitProblem) -> Fitted:
        """κ of every class."""
        dtype = problem.sums.dtype
        suffix, fitted = module.SUFFIX[dtype], Fitted.empty(problem)
        whole = problem.counts.dtype == torch.int64
        classes = getattr(module.library, f"VmfClasses_{suffix}")(
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
        if module.on_gpu(problem.sums):
            with module.current_stream(problem.sums.device) as stream:
                getattr(module.library, f"vmf_fit_cuda_{suffix}")(classes, *orders, stream)
        else:
            getattr(module.library, f"vmf_fit_{suffix}")(classes, *orders, torch.get_num_threads())
        return fitted


@lru_cache(maxsize=256)
def _native_order(library: Any, v: float, dtype: torch.dtype) -> Any:
    """The order as a struct of the module; cached, since making it takes longer than the functions of a batch."""
    return getattr(library, f"VmfOrder_{module.SUFFIX[dtype]}")(**asdict(vmf_order(v, dtype)))
