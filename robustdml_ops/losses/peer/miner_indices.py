"""What a miner found: triplets (anchors, positives, negatives), or pairs (anchors, positives, anchors, negatives)."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess
from robustdml_ops.engine.validation import INTEGERS


class ListedPairs(NamedTuple):
    """Positive and negative pairs, each of two vectors of places: in the batch, and among its candidates."""

    positive_anchors: Tensor
    positives: Tensor
    negative_anchors: Tensor
    negatives: Tensor

    def after(self, first: int) -> "ListedPairs":
        """The same pairs, anchors counted from ``first``."""
        positive_anchors, negative_anchors = self.positive_anchors - first, self.negative_anchors - first
        return self._replace(positive_anchors=positive_anchors, negative_anchors=negative_anchors)


def listed_pairs(indices_tuple: object, n: int, m: int) -> ListedPairs:
    """Pairs of a miner's tuple; a triplet is two of them."""
    vectors = check_indices(indices_tuple, n, m)
    if len(vectors) == 3:
        anchors, positives, negatives = vectors
        return ListedPairs(anchors, positives, anchors, negatives)
    return ListedPairs(*vectors)


def miner_weights(
    indices_tuple: object, n: int, like: Tensor, anchors_only: bool = False, shards: OneProcess = ONE_PROCESS
) -> Tensor:
    """How often a miner chose each sample, divided by the largest count, (n,) like ``like``; 1 if it found nothing."""
    vectors = check_indices(indices_tuple, n, n)
    if anchors_only:
        vectors = vectors[::2] if len(vectors) == 4 else vectors[:1]
    if n == 0:
        return like.new_ones(0)
    counts = shards.count(torch.bincount(torch.cat(vectors).to(like.device), minlength=n)).to(like.dtype)
    most = counts.max()
    return torch.where(most > 0, counts / most.clamp(min=1), 1)


def check_indices(indices_tuple: object, n: int, m: int) -> list[Tensor]:
    """Vectors of a miner's tuple, int64, whose places are those of n anchors and m candidates."""
    if not isinstance(indices_tuple, (tuple, list)) or len(indices_tuple) not in (3, 4):
        raise TypeError(
            "indices_tuple must be a miner's triplets (anchors, positives, negatives) or pairs (anchors, positives, "
            f"anchors, negatives), got {type(indices_tuple).__name__}; weights of samples are sample_weights="
        )
    vectors: list[Tensor] = []
    sizes = (n, m, m) if len(indices_tuple) == 3 else (n, m, n, m)
    for k, (vector, size) in enumerate(zip(indices_tuple, sizes, strict=True)):
        if not isinstance(vector, Tensor) or vector.dim() != 1 or (len(vector) and vector.dtype not in INTEGERS):
            found = f"{tuple(vector.shape)} of {vector.dtype}" if isinstance(vector, Tensor) else type(vector).__name__
            raise ValueError(f"indices_tuple[{k}] must be a vector of integers, got {found}")
        if len(vector) and vector.device.type == "cpu":
            least, largest = map(int, vector.aminmax())
            if least < 0 or largest >= size:
                raise IndexError(f"indices_tuple[{k}] holds {least if least < 0 else largest}, outside 0 … {size - 1}")
        vectors.append(vector.long())
    if len(vectors[0]) != len(vectors[1]) or len(vectors[-2]) != len(vectors[-1]):
        raise ValueError(f"indices_tuple must hold pairs of equal lengths, got {[len(vector) for vector in vectors]}")
    return vectors
