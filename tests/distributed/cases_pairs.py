"""Losses on pairs on shards, with banks, miners and texts, against one process: float64, 1e-10."""

import copy
import itertools
import re
from functools import partial

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.distributed import ShardError, shard_classes
from robustdml_ops.robust import MemoryBank
from tests.distributed.cases_losses import Batch, C, D, assert_same, check, make
from tests.distributed.worlds import backward_alike, case, close, register, sharded


class PairBatch(Batch):
    """Labels of few classes, so that all samples have pairs; a bank that all processes have."""

    def __init__(self, place, part, name, weighted):
        super().__init__(place, part, name, weighted)
        self.target = self.labels % 3
        self.bank = None
        if name == "memory_contrastive":
            generator = torch.Generator().manual_seed(6)
            labels = torch.randint(3, (7,), generator=generator)
            self.bank = (None, torch.randn(7, D, generator=generator, dtype=torch.float64), labels)

    def loss(self, loss):
        return loss(self.X, self.target, *(self.bank or ()), sample_weights=self.weights)


PAIRS = {
    "multi_similarity": partial(losses.MultiSimilarityLoss, epsilon=0.1),
    "contrastive": partial(losses.ContrastiveLoss, 0.2, 1.4),
    "memory_contrastive": partial(losses.MemoryContrastiveLoss, variant="authors"),
    "bspml": losses.BSPMLLoss,
    "supcon": losses.SupConLoss,
    "nt_xent": losses.NTXentLoss,
}


def of_pairs(name, reduction, place):
    """The pairs of the batch of all."""
    mine, _ = check(place, PAIRS[name](reduction=reduction), True, name, PairBatch)
    assert (mine.weights.grad is None) == (name == "bspml")


for _name in PAIRS:
    for _reduction in ("mean", "sum", "none"):
        register(f"{_name}_{_reduction}", partial(of_pairs, _name, _reduction), 2, 4)


def of_views(place, alone, seed):
    """A loss, a batch and another view of it: of one process that has all, and of several that have a part each."""
    of_all = torch.randn(place.batch_size, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    modules, parts = (alone, sharded(place, alone)), (slice(None), place.own)
    views = (of_all[part].clone().requires_grad_() for part in parts)
    return [*zip(modules, (PairBatch(place, part, "", True) for part in parts), views, strict=True)]


@case()
def two_towers(place):
    """Each process brings its pairs; the temperature has the gradient of all."""
    for make_loss in (
        losses.InfoNCELoss,
        partial(losses.InfoNCELoss, symmetric=False),
        partial(losses.InfoNCELoss, 0.3, q=0.5),
        losses.SigmoidLoss,
    ):
        (one, mine, first), (many, own, second) = both = of_views(place, make_loss().double(), 9)
        for loss, batch, view in both:
            batch.value = loss(batch.X, view, sample_weights=batch.weights.detach())
            batch.value.backward()
        close(own.value, mine.value)
        close(own.X.grad, mine.X.grad[place.own])
        close(second.grad, first.grad[place.own])
        for ours, alone in zip(many.parameters(), one.parameters(), strict=True):
            close(ours.grad.full_tensor(), alone.grad)


WITH_BANKS = {
    "multi_similarity": losses.MultiSimilarityLoss,
    "contrastive": partial(losses.ContrastiveLoss, 0.2, 1.4),
    "cosines": partial(losses.ContrastiveLoss, 0.9, 0.1, distance="cosine", ignore_index=2),
    "paper": losses.MemoryContrastiveLoss,
    "authors": partial(losses.MemoryContrastiveLoss, variant="authors"),
}


def banks_of(place, capacity, ids=None):
    """The same rows with one process and divided; the last slots of a large bank are empty."""
    generator = torch.Generator().manual_seed(capacity)
    one = MemoryBank(C, D, capacity, torch.float64)
    many = shard_classes(copy.deepcopy(one), place.mesh)
    rows, labels = torch.randn(11, D, generator=generator, dtype=torch.float64), torch.arange(11) % 3
    one.enqueue(rows, labels, ids)
    here = slice(None) if place.rank == 0 else slice(0)
    many.enqueue(rows[here], labels[here], None if ids is None else ids[here])
    return one, many


@case()
def banks_whose_slots_are_divided(place):
    """Every process compares the batch of all with the slots that it has; some have none, or only empty ones."""
    settings = ((17, False, "mean"), (17, True, "none"), (3, True, "mean"))
    for (capacity, weighted, reduction), make_loss in itertools.product(settings, WITH_BANKS.values()):
        one, many = banks_of(place, capacity)
        alone = make_loss(reduction=reduction)
        shared = sharded(place, alone)
        mine, own = PairBatch(place, slice(None), "", weighted), PairBatch(place, place.own, "", weighted)
        mine.bank, own.bank = ((None, bank.features, bank.labels) for bank in (one, many))
        expected, found = mine.loss(alone), own.loss(shared)
        backward_alike(place, shared, found, expected)
        assert_same(place, alone, shared, mine, own)


@case(2, 4)
def another_view(place):
    """Candidates that every process brings with its samples; the samples themselves are given in their place, too."""
    indices = listed(place, triplets=False)
    for make_loss, pairs in (*((each, None) for each in WITH_BANKS.values()), (losses.ContrastiveLoss, indices)):
        (one, mine, first), (many, own, second) = both = of_views(place, make_loss(), 7)
        for loss, batch, view in both:
            labels = None if pairs else batch.target
            batch.value = loss(batch.X, labels, pairs, view, labels, sample_weights=batch.weights)
            itself = batch.X, batch.target, None, batch.X, batch.target
            batch.value = batch.value + loss(*itself, sample_weights=batch.weights)
            batch.value.backward()
        close(own.value, mine.value)
        close(second.grad, first.grad[place.own])
        assert_same(place, one, many, mine, own)
    proxies = shard_classes(make("proxy_nca"), place.mesh)
    value = proxies(own.X, own.labels, None, own.X, own.labels)
    torch.testing.assert_close(value, proxies(own.X, own.labels), rtol=0, atol=0)


@case(2)
def gradients_of_divided_candidates(place):
    """They are those of one process, for the rows that are here."""
    for make_loss in WITH_BANKS.values():
        mine, own = PairBatch(place, slice(None), "", False), PairBatch(place, place.own, "", False)
        one, many = banks_of(place, 11)
        rows, parts = (bank.features.detach().requires_grad_() for bank in (one, many))
        loss = make_loss()
        loss(mine.X, mine.target, None, rows, one.labels).backward()
        shard_classes(loss, place.mesh)(own.X, own.target, None, parts, many.labels).backward()
        close(parts.grad.full_tensor(), rows.grad)


def listed(place, triplets):
    """Places of a miner in the batch of all; an anchor in two, and samples in none."""
    generator = torch.Generator().manual_seed(8)
    B = place.batch_size
    vectors = [torch.randint(B - 1, (4 * B,), generator=generator) for _ in range(3 if triplets else 4)]
    if triplets:
        return tuple(vectors)
    vectors[3] = (vectors[1] + 1 + vectors[2]) % B
    different = (vectors[0] * B + vectors[1]) % 2 == 0, (vectors[2] * B + vectors[3]) % 2 == 1
    return tuple(vector[different[at // 2]] for at, vector in enumerate(vectors))


def of_own_anchors(place, indices):
    sides = [indices] if len(indices) == 3 else [indices[:2], indices[2:]]
    own = [(side[0] >= place.own.start) & (side[0] < place.own.stop) for side in sides]
    return tuple(vector[mask] for side, mask in zip(sides, own, strict=True) for vector in side)


@case(2, 4)
def what_miners_list(place):
    """All pairs on all processes, or those of own samples on each: the loss of one process with all pairs."""
    of_classes = ("proxy_anchor", "adaptive_per_class", "proxy_nca", "soft_triple", "cosface")
    makers = {name: partial(make, name) for name in of_classes} | {
        "multi_similarity": losses.MultiSimilarityLoss,
        "mined": partial(losses.MultiSimilarityLoss, epsilon=0.3),
        "contrastive": partial(losses.ContrastiveLoss, 0.2, 1.4),
    }
    for at, (name, make_loss) in enumerate(makers.items()):
        indices = listed(place, triplets=at % 2 == 0 and name not in ("multi_similarity", "mined"))
        for weighted, given in ((False, indices), (True, of_own_anchors(place, indices))):
            one = make_loss(reduction="none" if weighted else "mean")
            many = sharded(place, one)
            mine, own = Batch(place, slice(None), name, weighted), Batch(place, place.own, name, weighted)
            expected = one(mine.X, mine.target, indices, sample_weights=mine.weights)
            found = many(own.X, own.target, given, sample_weights=own.weights)
            backward_alike(place, many, found, expected)
            assert_same(place, one, many, mine, own)
    empty = (torch.empty(0, dtype=torch.int64),) * 4
    assert many(own.X, None, empty).sum() == 0  # nobody found anything


@case(2)
def pairs_that_do_not_fit(place):
    """All processes raise, and the next step goes on."""
    X, labels = torch.randn(3, D, requires_grad=True), torch.tensor([0, 0, 1])
    loss = shard_classes(losses.ContrastiveLoss(), place.mesh)
    last, none = place.rank == 1, torch.empty(0, dtype=torch.int64)
    own = (torch.tensor([0]), torch.tensor([1]), none, none)
    for given, kind, message in (
        ((torch.tensor([6 if last else 0]), torch.tensor([1]), none, none), IndexError, r"holds 6, outside 0 … 5"),
        ((torch.tensor([0 if last else 3]), torch.tensor([1]), none, none), None, "all together have 0 such"),
        # As many on each as rank 0 has, but not the same ones: a list of all would be the same everywhere.
        ((torch.tensor([1 if last else 0]), torch.tensor([2]), none, none), None, "all together have 1 such"),
        (None if last else own, ShardError, r"indices_tuple is 4 on rank 0 and False on rank 1"),
        (1 if last else own, ShardError, r"indices_tuple is 4 on rank 0 and True on rank 1"),
    ):
        with pytest.raises((kind or ValueError) if last or kind in (None, ShardError) else ShardError, match=message):
            loss(X, labels, given)
        loss(X, labels, (own[0] + 3 * last, own[1], none, none)).backward()
    with pytest.raises(ValueError, match="labels must be numbers of classes"):
        loss(X, torch.tensor([0.5, 0.5, 1.0]))
    every_second = X.detach()[place.rank :: 2], labels[place.rank :: 2].bool()
    torch.testing.assert_close(loss(*every_second), losses.ContrastiveLoss()(X.detach(), labels.bool()))
    many, bank = banks_of(place, 17)
    with pytest.raises(ValueError, match="indices_tuple lists pairs with rows of a whole bank"):
        loss(X.double(), labels, own, bank.features, bank.labels)
    with pytest.raises(ValueError, match="must both be DTensors"):
        loss(X.double(), labels, None, bank.features, many.labels)
    references = [(many.features, many.labels), (many.features[:3], None), (None, None), (bank.features, bank.labels)]
    told = ["(17, 6), the same for all", "a view of own samples", "not given", "that of a divided bank"]
    for at in range(3):
        found = (f"'?{re.escape(kind)}'? on rank {rank}" for rank, kind in enumerate(told[at : at + 2]))
        message = f"the reference set is {' and '.join(found)}"
        with pytest.raises(ShardError, match=message):
            loss(X.double(), labels, None, *references[at + last])


@case()
def language_guidance(place):
    """Rows of own samples, columns of all."""
    generator = torch.Generator().manual_seed(9)
    texts = torch.randn(place.batch_size, 2, 5, generator=generator, dtype=torch.float64)
    for shift, direction, reduction, weighted in (
        (None, "forward", "mean", False), (0.4, "backward", "mean", True), (0.4, "forward", "none", True),
        (0.4, "forward", "sum", True),
    ):  # fmt: skip
        one = losses.LanguageGuidanceLoss(direction, shift, 0.5, reduction=reduction)
        many = sharded(place, one)
        mine, own = PairBatch(place, slice(None), "", weighted), PairBatch(place, place.own, "", weighted)
        expected = one(mine.X, texts, mine.target, sample_weights=mine.weights)
        found = many(own.X, texts[place.own], own.target, sample_weights=own.weights)
        backward_alike(place, many, found, expected)
        assert_same(place, one, many, mine, own)


@case()
def super_contrastive(place):
    """Two steps, since the running means have a state."""
    one = losses.SuperContrastiveLoss(0.1, 1.3, 0.5)
    many = sharded(place, one)
    for weighted in (False, True):
        mine, own = (PairBatch(place, part, "", weighted) for part in (slice(None), place.own))
        with torch.no_grad():  # near rows, and equal ones, with different processes
            mine.X[4], mine.X[-1] = mine.X[0] + 1e-9, mine.X[0]
            own.X.copy_(mine.X[place.own])
        backward_alike(place, many, own.loss(many), mine.loss(one))
        assert_same(place, one, many, mine, own)
    for buffer, other in zip(one.buffers(), many.buffers(), strict=True):
        close(other, buffer)


@case(2, 3)
def lonely_samples_are_counted_over_all_processes(place):
    """Two samples of a class may be on two processes; a miner's list has own anchors."""
    n, own = place.batch_size, place.own
    pairs, several = torch.arange(n) // 2, torch.arange(n) % 3
    loss, counted = sharded(place, losses.SupConLoss()), []
    X = torch.randn(n, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[own].requires_grad_()
    for labels in (pairs, torch.arange(n), several):
        loss(X, labels[own])
        counted.append(loss.first_steps.counts.tolist())
    assert counted == [[n % 2, n], [n % 2 + n, 2 * n], [n % 2 + n, 3 * n]]
    loss = sharded(place, losses.SupConLoss())
    if own.start < own.stop:
        first = torch.tensor([own.start])
        loss(X, indices_tuple=(first, (first + 1) % n, first, (first + 2) % n))
        assert loss.first_steps.counts.tolist() == [own.stop - own.start - 1, own.stop - own.start]
    else:
        none = torch.empty(0, dtype=torch.int64)
        loss(X, indices_tuple=(none,) * 4)
        assert loss.first_steps.counts.tolist() == [0, 0]
