"""Mining among sharded candidates: the extremes that bound it are those of all processes."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.losses.peer.listed_pairs import SignedCosines
from robustdml_ops.ops import PairLSE, similarity
from robustdml_ops.ops.pairs.autograd import pair_dtype

# Cosines at a time: 16 MB.
_MOST_COSINES = 2**22


def mined_lse(
    pairs: tuple[Tensor, Tensor, Tensor, Tensor],
    shards: OneProcess,
    *,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float,
) -> PairLSE:
    """:func:`robustdml_ops.ops.pair_lse` of the anchors of all processes with the candidates of this one.

    ``pairs`` are the anchors, their labels, the candidates of this process, and theirs. A fused sweep mines by the
    candidates that it sees; here the extremes of all processes are found first, in plain PyTorch.
    """
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

    def sums(rows: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        positive, negative = sides(rows, anchors)
        positive = positive.keep(positive.s - epsilon < largest_negative[anchors][:, None])
        negative = negative.keep(negative.s + epsilon > least_positive[anchors][:, None])
        return positive.log_one_plus(alpha * (base - positive.s)), negative.log_one_plus(beta * (negative.s - base))

    chunked = [checkpoint(sums, X[anchors], anchors, use_reentrant=False) for anchors in chunks]
    return PairLSE(*(torch.cat(side) for side in zip(*chunked, strict=True)))
