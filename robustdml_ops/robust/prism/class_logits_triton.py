"""Update of scale and bias of the logits in one launch."""

import torch

from robustdml_ops.backends.triton_device import current, grid_of, launch
from robustdml_ops.robust.prism.class_logits import LogitUpdate, LogitWriter

_BLOCK = 128


class TritonLogitWriter(LogitWriter):
    """On CUDA devices; in Triton's interpreter also on the CPU."""

    def write(self, update: LogitUpdate) -> None:
        """Write by a Triton kernel."""
        from robustdml_ops.robust.prism.class_logits_kernel import class_logits as kernel

        count = len(update.counts if update.classes is None else update.classes)
        kappa, log_peak, length = update.fitted or (None, None, None)
        if count:
            with current(update.scale):
                kernel[grid_of(count, _BLOCK)](
                    classes=update.classes,
                    counts=update.counts,
                    scale=update.scale,
                    bias=update.bias,
                    fitted_kappa=kappa,
                    fitted_log_peak=log_peak,
                    length=length,
                    kappa=update.kappa,
                    log_peak=update.log_peak,
                    count=count,
                    BIAS_OF_UNSEEN=update.bias_of_unseen,
                    TINY=torch.finfo(update.scale.dtype).tiny,
                    **launch(BLOCK=_BLOCK, num_warps=4, num_stages=1),
                )
