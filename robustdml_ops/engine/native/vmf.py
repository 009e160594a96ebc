"""The functions of the von Mises–Fisher distribution in the native module (``csrc/math/vmf.h``), on CPU and GPU."""

from dataclasses import asdict

import torch
from torch import Tensor

from robustdml_ops.engine.native import module
from robustdml_ops.engine.vmf_order import vmf_order


def evaluate_vmf(function: str, v: float, kappa: Tensor) -> Tensor:
    """``function`` of order ``v`` at ``kappa`` ≥ 0 (float64 or float32, any shape); NaN elsewhere."""
    suffix = module.SUFFIX[kappa.dtype]
    order = getattr(module.library, f"VmfOrder_{suffix}")(**asdict(vmf_order(v, kappa.dtype)))
    values = kappa.contiguous()
    out = torch.empty_like(values)
    arguments = (order, values.data_ptr(), out.data_ptr(), out.numel())
    if module.on_gpu(out):
        with module.current_stream(out.device) as stream:
            getattr(module.library, f"vmf_{function}_cuda_{suffix}")(*arguments, stream)
    else:
        getattr(module.library, f"vmf_{function}_{suffix}")(*arguments, torch.get_num_threads())
    return out
