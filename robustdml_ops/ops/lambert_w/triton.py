"""Lambert's W and the confidences made of it in Triton, one launch each."""

from torch import Tensor

from robustdml_ops.backends.triton_device import current, grid_of
from robustdml_ops.ops.lambert_w.problem import CompiledLambertW, stride_of

BLOCK = 256


class TritonLambertW(CompiledLambertW):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def run(self, name: str, inputs: list[Tensor], lam: float | None, outputs: list[Tensor]) -> None:
        """Launch the kernel; λ is a tensor, so that no value of it is compiled in."""
        from robustdml_ops.ops.lambert_w import kernels

        out = outputs[0]
        settings: tuple[int | Tensor, ...] = ()
        if lam is not None:
            settings = (stride_of(inputs[1]), out.new_full((1,), 2 * lam if name == "confidence" else lam))
        if out.numel():
            with current(out):
                getattr(kernels, name)[grid_of(out.numel(), BLOCK)](
                    *inputs, *settings, *outputs, out.numel(), BLOCK=BLOCK, enable_fp_fusion=True
                )
