"""The interface of a backend for similarities."""

from torch import Tensor

from robustdml_ops.engine.rows.backend import RowsBackend


class SimilarityBackend(RowsBackend):
    """Matrix of cosines, and nearest rows of a gallery, on one backend."""

    def fused(self, X: Tensor, P: Tensor, S: Tensor, input_precision: str) -> bool:
        """S ← all cosines of X (B, D) with P (C, D) at once; False, and nothing done, where chunks are faster."""
        return False

    def keep_nearest(self, S: Tensor, first: int, excluded: Tensor | None, values: Tensor, indices: Tensor) -> None:
        """Merge S (n, c), similarities with the gallery rows from ``first`` on, into the nearest so far, in place.

        ``values`` (n, k) descend, equal ones by ``indices`` (n, k). ``excluded`` (n,): a gallery row each query leaves
        out.
        """
        raise NotImplementedError
