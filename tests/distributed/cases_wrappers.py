"""The losses within pytorch-metric-learning's wrapper, which gathers the batch of all processes on each."""

import torch
from pytorch_metric_learning import miners
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper, DistributedMinerWrapper

from tests.compatibility.peers import NAMES, PAIR_NAMES, batch, both, values
from tests.distributed.worlds import NIGHTLY, case, close


def on_each(loss, X, y, mined, efficient=False):
    """Value and gradient of the rows of this process, with their pairs by the wrapper of a miner."""
    X = X.detach().requires_grad_()
    miner = DistributedMinerWrapper(miners.MultiSimilarityMiner(), efficient=efficient)
    pairs = miner(X, y) if mined else None
    return values(DistributedLossWrapper(loss, efficient=efficient), X, y, pairs)[:2]


@case(2)
def each_rank_has_the_loss_of_the_whole_batch(place):
    """Times the number of ranks, each of which differentiates by its own rows alone: DDP averages over both."""
    torch.use_deterministic_algorithms(False)  # theirs is not deterministic
    X, y = batch(0, 24)
    own = slice(12 * place.rank, 12 * place.rank + 12)  # of as many rows on each
    try:
        for name in NAMES:
            for mined in (False, True):
                pairs = miners.MultiSimilarityMiner()(X, y) if mined else None
                loss, dX, *_ = values(both(name)[1], X, y, pairs)
                value, gradient = on_each(both(name)[0], X[own], y[own], mined)
                close(value, 2 * loss)
                close(gradient, 2 * dX[own])
                if name in PAIR_NAMES:
                    assert on_each(both(name)[0], X[own], y[own], mined, efficient=True)[0].isfinite()
    finally:
        torch.use_deterministic_algorithms(True)


NIGHTLY.add((2, "wrappers.each_rank_has_the_loss_of_the_whole_batch"))
