"""Lambert's W and the confidences made of it in the native module (``csrc/math/lambert_w.h``), on CPU and GPU."""

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.ops.lambert_w.problem import CompiledLambertW, stride_of


class NativeLambertW(CompiledLambertW):
    """On the CPU and on CUDA devices."""

    def run(self, name: str, inputs: list[Tensor], lam: float | None, outputs: list[Tensor]) -> None:
        """Call the function of the outputs' type and device."""
        out = outputs[0]
        settings: tuple[int | float, ...] = () if lam is None else (stride_of(inputs[1]), lam)
        addresses = [tensor.data_ptr() for tensor in outputs]
        arguments = (*(tensor.data_ptr() for tensor in inputs), *settings, *addresses, out.numel())
        suffix = module.SUFFIX[out.dtype]
        if module.on_gpu(out):
            with module.current_stream(out.device) as stream:
                getattr(module.library, f"{name}_cuda_{suffix}")(*arguments, stream)
        else:
            getattr(module.library, f"{name}_{suffix}")(*arguments, torch.get_num_threads())
