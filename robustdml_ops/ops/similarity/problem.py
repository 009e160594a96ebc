"""The interface of a backend for similarities."""

from torch import Tensor

from robustdml_ops.engine.rows.backend import RowsBackend


class SimilarityBackend(RowsBackend):
    """Matrix of cosines, and nearest rows of a gallery, on one backend."""

    def fused(self, X: Tensor, P: Tensor, S: Tensor, input_precision: str) -> bool:
        """S ← all cosines of X (B, D) with P (C, D), any scale, at once.

        Optional: False, and nothing done, where the backend has no faster way than products by chunks.
        """
        return False

    def keep_nearest(self, S: Tensor, first: int, excluded: Tensor | None, values: Tensor, indices: Tensor) -> None:
        """Merge similarities with the gallery rows from ``first`` on into the nearest so far, in place.

        S (n, c) may be used up. values (n, k) descend, indices (n, k) int64 are those of the gallery rows; equal values
        are ordered by index. excluded (n,) int64: a gallery row that each query leaves out; None: none.
        """
        raise NotImplementedError
