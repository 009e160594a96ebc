"""Pairs of several labels and of ids on shards, with banks, views and texts, against one process: float64, 1e-10."""

from functools import partial

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.distributed import ShardError, shard_classes
from robustdml_ops.ops import ABSENT
from tests.distributed.cases_losses import D, assert_same
from tests.distributed.cases_pairs import PAIRS, WITH_BANKS, PairBatch, banks_of, of_views
from tests.distributed.worlds import backward_alike, case, close, sharded


class RelatedBatch(PairBatch):
    """Up to two labels and an id of each sample; processes have samples of equal ids."""

    def __init__(self, place, part, name, weighted):
        super().__init__(place, part, name, weighted)
        generator, B = torch.Generator().manual_seed(11), place.batch_size
        labels = torch.rand(B, 5, generator=generator).argsort(1)[:, :2]
        labels[:, 1].masked_fill_(labels[:, 0] % 2 == 0, ABSENT)
        self.target = labels[part]
        self.options = {"sample_ids": torch.randint(-2, 5, (B,), generator=generator)[part]}
        if self.bank is not None:
            self.options["ref_ids"] = torch.randint(-2, 5, (len(self.bank[2]),), generator=generator)

    def loss(self, loss):
        return loss(self.X, self.target, *(self.bank or ()), sample_weights=self.weights, **self.options)


@case(2, 4)
def labels_and_ids(place):
    """The batch of all, or its losses."""
    for (name, make_loss), reduction in zip(PAIRS.items(), ("mean", "none") * len(PAIRS), strict=False):
        one = make_loss(reduction=reduction)
        many = sharded(place, one)
        mine, own = (RelatedBatch(place, part, name, True) for part in (slice(None), place.own))
        backward_alike(place, many, own.loss(many), mine.loss(one))
        assert_same(place, one, many, mine, own)


@case(2)
def ids_of_divided_banks(place):
    """Banks keep ids with their rows, and a loaded bank has them."""
    for make_loss in WITH_BANKS.values():
        one, many = banks_of(place, 17, torch.arange(11) % 5)
        again = shard_classes(type(one)(one.num_classes, D, 17, torch.float64), place.mesh)
        again.load_state_dict(many.state_dict())
        alone = make_loss()
        shared = sharded(place, alone)
        mine, own = (PairBatch(place, part, "", False) for part in (slice(None), place.own))
        ids = torch.arange(place.batch_size) % 4
        expected = alone(mine.X, mine.target, None, one.features, one.labels, sample_ids=ids, ref_ids=one.sample_ids)
        bank, own_ids = (None, again.features, again.labels), ids[place.own]
        found = shared(own.X, own.target, *bank, sample_ids=own_ids, ref_ids=again.sample_ids)
        backward_alike(place, shared, found, expected)
        assert_same(place, alone, shared, mine, own)


@case(2)
def ids_of_views_and_towers(place):
    """A view has the ids of its samples; texts and images have ids of their own."""
    ids = [torch.randint(-1, 6, (place.batch_size,), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    towers = (losses.InfoNCELoss, partial(losses.InfoNCELoss, symmetric=False), losses.SigmoidLoss)
    for make_loss in (losses.SupConLoss, losses.MultiSimilarityLoss, *towers):
        (_, mine, first), (_, own, second) = both = of_views(place, make_loss().double(), 7)
        for (loss, batch, view), part in zip(both, (slice(None), place.own), strict=True):
            own_ids, other_ids = (one[part] for one in ids)
            if make_loss in towers:
                batch.value = loss(batch.X, view, sample_ids=own_ids, other_ids=other_ids)
            else:
                batch.value = loss(batch.X, batch.target, None, view, batch.target, sample_ids=own_ids)
            batch.value.backward()
        close(own.value, mine.value)
        close(own.X.grad, mine.X.grad[place.own])
        close(second.grad, first.grad[place.own])


@case(2)
def ids_that_do_not_fit(place):
    """All processes raise, and the next step goes on."""
    X, labels, ids = torch.randn(3, D, requires_grad=True), torch.tensor([0, 0, 1]), torch.arange(3)
    last = place.rank == 1
    loss = shard_classes(losses.SupConLoss(), place.mesh)
    with pytest.raises(ShardError, match=r"sample_ids is of torch\.int64 with 1 columns on rank 0 and not given"):
        loss(X, labels, sample_ids=None if last else ids)
    with pytest.raises(ValueError if last else ShardError, match="sample_ids must have shape"):
        loss(X, labels, sample_ids=ids[:2] if last else ids)
    towers = shard_classes(losses.InfoNCELoss(), place.mesh)
    with pytest.raises(ValueError if last else ShardError, match="other_ids must be integers"):
        towers(X, X, other_ids=ids.float() if last else ids)
    loss(X, labels, sample_ids=ids).backward()
