"""The interface of a backend for similarities, and the nearest of a gallery in plain PyTorch."""

import torch
from torch import Tensor

from robustdml_ops.engine.rows.eager import EagerRows

_LOW_WORD = 0xFFFFFFFF


class SimilarityBackend(EagerRows):
    """Matrix of cosines, and nearest rows of a gallery: on every device, without a compiler."""

    def fused(self, X: Tensor, P: Tensor, S: Tensor, input_precision: str) -> bool:
        """S ← all cosines of X (B, D) with P (C, D) at once; False, and nothing done, where chunks are faster."""
        return False

    def keep_nearest(self, S: Tensor, first: int, excluded: Tensor | None, values: Tensor, indices: Tensor) -> None:
        """Merge S (n, c), similarities with the gallery rows from ``first`` on, into the nearest so far, in place.

        ``values`` (n, k) descend, equal ones by ``indices`` (n, k). ``excluded`` (n,): a gallery row each query leaves
        out.
        """
        if excluded is not None:
            place = excluded[:, None] - first
            inside = (place >= 0) & (place < S.shape[1])
            place = place.clamp(0, S.shape[1] - 1)
            S.scatter_(1, place, S.gather(1, place).masked_fill_(inside, -torch.inf))
        columns = torch.arange(first, first + S.shape[1], device=S.device).expand(len(S), -1)
        merged, sources = torch.cat([values, S], 1), torch.cat([indices, columns], 1)
        order = _first_of_equal(merged, values.shape[1])
        torch.gather(merged, 1, order, out=values)
        torch.gather(sources, 1, order, out=indices)


def _first_of_equal(values: Tensor, k: int) -> Tensor:
    """Places (n, k) of the k largest of each row, in descending order; of equal ones the first come first."""
    if values.dtype != torch.float32:
        return values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    # torch.topk takes equal values in any order. As integers a value and its place are one number, and none are equal.
    bits = (values + 0.0).view(torch.int32)  # −0 becomes 0
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    places = _LOW_WORD - torch.arange(values.shape[1], device=values.device)
    keys = torch.topk((ascending << 32) | places, k, dim=1).values
    return _LOW_WORD - (keys & _LOW_WORD)
