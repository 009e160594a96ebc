"""What pytorch-metric-learning wraps around a loss takes ours: memory, self-supervision, several losses, processes."""

import pytest
import torch
from peers import NAMES, PAIR_NAMES, D, assert_same, batch, both, values
from pytorch_metric_learning import miners
from pytorch_metric_learning.losses import CrossBatchMemory, MultipleLosses, SelfSupervisedLoss
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

import robustdml_ops.losses as ours

pytestmark = pytest.mark.usefixtures("as_in_training")  # theirs is not deterministic


@pytest.mark.parametrize("name", PAIR_NAMES)
@pytest.mark.parametrize("miner", [None, miners.MultiSimilarityMiner, miners.TripletMarginMiner])
def test_cross_batch_memory(name, miner):
    """Over the wrap of the queue: 5 batches of 12 in 40 slots. Their NT-Xent compares each triplet with all others."""
    pair = [CrossBatchMemory(loss, D, memory_size=40, miner=miner and miner()).double() for loss in both(name)]
    for seed in range(5):
        assert_same(pair, *batch(seed, 12))


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_cross_batch_memory_with_pairs_of_a_miner(name):
    """They are places in the queue, which holds the first batch from its first slot on."""
    pair = [CrossBatchMemory(loss, D, memory_size=100).double() for loss in both(name)]
    X, y = batch()
    assert_same(pair, X, y, miners.MultiSimilarityMiner()(X, y))


def test_cross_batch_memory_keeps_out_what_is_enqueued():
    mask = torch.arange(24) % 2 == 0
    pair = [CrossBatchMemory(loss, D, memory_size=100).double() for loss in both("ContrastiveLoss")]
    for seed in range(3):
        assert_same(pair, *batch(seed), enqueue_mask=mask)


def test_mining_within_the_loss_takes_the_pairs_of_a_memory():
    """Ours mines what is listed; theirs has its miner do it."""
    mine = CrossBatchMemory(ours.MultiSimilarityLoss(epsilon=0.1), D, memory_size=100).double()
    theirs = CrossBatchMemory(both("MultiSimilarityLoss")[1], D, memory_size=100).double()
    theirs.miner = miners.MultiSimilarityMiner(epsilon=0.1)
    mine.loss.double()
    X, y = batch(0)
    values(mine, X, y), values(theirs, X, y)  # fills both memories
    # Theirs mines before it drops the pairs of a sample with itself, which are the most similar positives of all; they
    # bound no negative, so the least similar positive, and with it the choice of negatives, is the same.
    Z, z = batch(1)
    a, b = mine(Z, z), theirs(Z, z)
    assert torch.isfinite(a) and torch.isfinite(b)
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", PAIR_NAMES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_self_supervised_loss(name, symmetric):
    X, _ = batch()
    Z = (X + 0.2 * torch.randn_like(X)).detach()
    assert_same([SelfSupervisedLoss(loss, symmetric=symmetric) for loss in both(name)], X, Z)


def test_multiple_losses():
    X, y = batch()
    wrapped = []
    for index in (0, 1):
        losses = {name: both(name)[index] for name in NAMES}
        given = {"ContrastiveLoss": miners.MultiSimilarityMiner(), "ProxyAnchorLoss": miners.BatchHardMiner()}
        wrapped.append(MultipleLosses(losses, miners=given, weights=dict.fromkeys(NAMES, 0.5)))
    assert_same(wrapped, X, y, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_distributed_wrapper_alone(name):
    """On two processes: tests/distributed/cases_wrappers.py."""
    pair = [DistributedLossWrapper(loss) for loss in both(name)]
    with pytest.warns(UserWarning, match="non-distributed setting"):
        assert_same(pair, *batch())


def test_other_losses_are_called_as_theirs():
    """A trainer gives three arguments, of which the third is None without a miner."""
    X, y = batch()
    for loss in (
        ours.AdaptiveProxyAnchorLoss(9, D).double(),
        ours.ProcSimLoss(9, D).double(),
        ours.BSPMLLoss(),
        ours.MemoryContrastiveLoss(),
    ):
        torch.testing.assert_close(loss(X, y, None), loss(X, y))
    margins = ours.AdaptiveProxyAnchorLoss(9, D, 0.3, 16)
    assert (float(margins.margins.detach()), margins.alpha) == (pytest.approx(0.3), 16)
