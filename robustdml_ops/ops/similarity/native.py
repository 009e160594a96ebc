"""The nearest of a gallery in the native module (``csrc/similarity``); on a GPU as ``eager`` does it."""

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.rows.native import NativeRows
from robustdml_ops.ops.similarity.eager import SimilarityBackend


class NativeSimilarity(NativeRows, SimilarityBackend):
    """On the CPU and on CUDA devices."""

    def keep_nearest(self, S: Tensor, first: int, excluded: Tensor | None, values: Tensor, indices: Tensor) -> None:
        if module.on_gpu(S):
            super().keep_nearest(S, first, excluded, values, indices)
            return
        getattr(module.library, f"nearest_update_{module.SUFFIX[S.dtype]}")(
            S=S.data_ptr(),
            row_stride=S.stride(0),
            rows=S.shape[0],
            columns=S.shape[1],
            first_column=first,
            excluded=module.address(excluded),
            k=values.shape[1],
            values=values.data_ptr(),
            indices=indices.data_ptr(),
            threads=torch.get_num_threads(),
        )
