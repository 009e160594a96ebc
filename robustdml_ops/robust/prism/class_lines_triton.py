"""Scale and bias of classes in one launch."""

import torch

from robustdml_ops.backends.triton_device import current, grid_of, launch
from robustdml_ops.robust.prism.class_lines import LinesProblem, LineWriter

_BLOCK = 128


class TritonLineWriter(LineWriter):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def write(self, problem: LinesProblem) -> None:
        """As :meth:`LineWriter.write`."""
        from robustdml_ops.robust.prism.class_lines_kernel import class_lines as kernel

        count = len(problem.counts if problem.classes is None else problem.classes)
        kappa, log_peak, length = problem.fitted or (None, None, None)
        if count:
            with current(problem.scale):
                kernel[grid_of(count, _BLOCK)](
                    classes=problem.classes,
                    counts=problem.counts,
                    scale=problem.scale,
                    bias=problem.bias,
                    fitted_kappa=kappa,
                    fitted_log_peak=log_peak,
                    length=length,
                    kappa=problem.kappa,
                    log_peak=problem.log_peak,
                    count=count,
                    BIAS_OF_UNSEEN=problem.bias_of_unseen,
                    TINY=torch.finfo(problem.scale.dtype).tiny,
                    **launch(BLOCK=_BLOCK, num_warps=4, num_stages=1),
                )
