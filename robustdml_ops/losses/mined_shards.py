"""Mining among sharded candidates: a fused sweep sees those of one process, and the extremes of all bound it."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.losses.peer.listed_pairs import SignedCosines, lse_of
from robustdml_ops.ops import PairLSE, similarity
from robustdml_ops.ops.pairs.autograd import pair_dtype

# Cosines at a time: 16 MB.
_MOST_COSINES = 2**22


def mined_lse(pairs: tuple[Tensor, Tensor, Tensor, Tensor], shards: OneProcess, **settings: Any) -> PairLSE:
    """``pair_lse`` in plain PyTorch of ``pairs``: anchors of all processes and candidates of this one, with labels."""
    X, labels, Y, candidate_labels = pairs
    dtype = pair_dtype(X, Y)
    most = max(1, _MOST_COSINES // max(1, len(Y)))
    chunks = torch.split(torch.arange(len(X), device=X.device), most)

    def sides(rows: Tensor, anchors: Tensor) -> tuple[SignedCosines, SignedCosines]:
        S = similarity(rows, Y, dtype=dtype)
        own = labels[anchors][:, None]
        here = (own != ABSENT) & (candidate_labels != ABSENT)
        same = own == candidate_labels
        return SignedCosines(S, here & same, len(S)), SignedCosines(S, here & ~same, len(S))

    def extremes(anchors: Tensor) -> Tensor:
        positive, negative = sides(X[anchors], anchors)
        return torch.stack([-positive.largest(-positive.s), -negative.largest(negative.s)])  # the least of both counts

    with torch.no_grad():
        found = torch.cat([extremes(anchors) for anchors in chunks], dim=1)
        least_positive, largest_negative = shards.least(found) * found.new_tensor([[1.0], [-1.0]])

    def sums(rows: Tensor, anchors: Tensor) -> PairLSE:
        return lse_of(*sides(rows, anchors), (least_positive[anchors], largest_negative[anchors]), **settings)

    chunked = [checkpoint(sums, X[anchors], anchors, use_reentrant=False) for anchors in chunks]
    return PairLSE(*(torch.cat(side) for side in zip(*chunked, strict=True)))
