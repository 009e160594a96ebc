"""Otsu's cut, by the backend that serves the device."""

import torch
from torch import Tensor

from robustdml_ops.engine.dispatch import choose
from robustdml_ops.engine.otsu_cut import OtsuCut


def cut(values: Tensor, min_group: int, backend: str | None) -> OtsuCut:
    """Cut every row of ``values`` (..., n), float64 or float32, into groups of ``min_group`` at least.

    ``backend`` and errors as in :func:`robustdml_ops.engine.dispatch.choose`. Not differentiable.
    """
    epilogue = choose(backend, values.device, values.dtype)
    if values.shape[-1] > 0:
        return epilogue.otsu_cut(values, min_group)
    # A NaN is left out: what remains is a row without values.
    cut = epilogue.otsu_cut(values.new_full((*values.shape[:-1], 1), torch.nan), min_group)
    return cut._replace(excluded=torch.zeros_like(cut.excluded))
