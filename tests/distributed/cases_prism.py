"""PRISM on shards: the same scores, thresholds, masks and queue on every process as on one."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from robustdml_ops.distributed import ShardError, shard_classes
from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyNCALoss, SoftTripleLoss
from robustdml_ops.robust import PRISM, MemoryBank
from tests.distributed.worlds import CLASSES, NIGHTLY, case, close, register

C, D, N = CLASSES, 6, 150
TIMES = 5  # as many samples as in other cases: thresholds need some
BANK = {"memory_size": 100, "memory_dtype": torch.float64}
FILTERS = {
    "average": {**BANK, "noise_rate": 0.3},
    "average_ids": {**BANK, "noise_rate": 0.3, "threshold": "top-r", "num_samples": N},
    "vmf": {**BANK, "similarity": "vmf", "noise_rate": 0.3, "vmf_start": 2},
    "vmf_ids": {**BANK, "similarity": "vmf", "threshold": "cautious", "vmf_start": 1, "num_samples": N},
    "per_class": {**BANK, "noise_rate": 0.4, "threshold": "per-class", "window": 3},
    "otsu": {**BANK, "similarity": "vmf", "threshold": "otsu", "vmf_start": 2, "window": 4},
    "cautious": {**BANK, "similarity": "vmf", "threshold": "cautious", "vmf_start": 1},
    "proxy": {"similarity": "proxy", "noise_rate": 0.3, "threshold": "per-class", "window": 3},
    "fixed": {**BANK, "threshold": "fixed", "fixed_threshold": 0.2},
}


def steps(place, count=12, seed=4):
    """Batches around one direction a class, with wrong labels; ids, since filters may ask for them."""
    generator = torch.Generator().manual_seed(seed)
    random = partial(torch.randn, generator=generator, dtype=torch.float64)
    means = 2 * random(C, D)
    for _ in range(count):
        true = torch.randint(C, (TIMES * place.batch_size,), generator=generator)
        wrong = torch.rand(len(true), generator=generator) < 0.3
        labels = torch.where(wrong, torch.randint(C, true.shape, generator=generator), true)
        yield means[true] + random(len(true), D), labels, torch.randint(N, true.shape, generator=generator)


def own_rows(place):
    return slice(TIMES * place.own.start, TIMES * place.own.stop)


def same_state(one, many):
    """What is held for each class and each slot, put together."""
    whole = get_model_state_dict(many, options=StateDictOptions(full_state_dict=True))
    expected = one.state_dict()
    assert whole.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(whole[name], value, rtol=1e-10, atol=1e-10, equal_nan=True, msg=name)
        if name.endswith(("labels", "sample_ids", "enqueued", "counts", "latest", "earlier", "observed")):
            assert torch.equal(whole[name], value), name


def judged(place, name):
    one = PRISM(C, D, **FILTERS[name])
    many = shard_classes(copy.deepcopy(one), place.mesh)
    proxies = {"proxies": torch.randn(C, D, dtype=torch.float64)} if name == "proxy" else {}
    own, rejected = own_rows(place), 0
    for X, labels, ids in steps(place):
        expected = one(X, labels, ids, **proxies)
        found = many(X[own], labels[own], ids[own], **proxies)
        assert torch.equal(found.keep, expected.keep[own])
        torch.testing.assert_close(found.log_p_clean, expected.log_p_clean[own], rtol=1e-10, atol=1e-10)
        threshold = expected.threshold[own] if expected.threshold.dim() else expected.threshold
        torch.testing.assert_close(found.threshold, threshold, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(
            many.log_p_clean(X[own], labels[own], ids[own], **proxies), one.log_p_clean(X, labels, ids, **proxies)[own]
        )
        assert set(found.rejected_ids.tolist()) - {-1} == set(ids[own][~found.keep].tolist())
        one.enqueue(X, labels, expected.keep, ids)
        many.enqueue(X[own], labels[own], found.keep, ids[own])
        rejected += int((~expected.keep).sum())
    assert rejected, "a filter that rejects nothing proves little"
    same_state(one, many)


# The short suite takes one filter with a fixed threshold and one that looks at ids in a world of three, others of two.
NIGHTLY.update((2 if name in ("fixed", "vmf_ids") else 3, f"prism.{name}") for name in FILTERS)
for _name in FILTERS:
    register(_name, partial(judged, name=_name), *((2, 3, 4) if _name != "average" else ()))


@case(2)
def proxies_of_a_sharded_loss(place):
    """They come as DTensors, of whatever shape the loss has them in."""
    X, labels, ids = next(iter(steps(place)))
    own = own_rows(place)
    for loss, proxies in (
        (ProxyNCALoss(C, D), lambda loss: loss.proxies),
        (NormalizedSoftmaxLoss(C, D), lambda loss: loss.W.t()),
        (SoftTripleLoss(C, D, 2), lambda loss: loss.fc if loss.fc.dim() == 3 else loss.by_class("fc", loss.fc)),
    ):
        one = PRISM(C, D, similarity="proxy", noise_rate=0.3)
        many, loss = shard_classes(copy.deepcopy(one), place.mesh), loss.double()
        expected = [one(X, labels, ids, proxies(loss).detach()) for _ in range(2)][1]
        sharded = shard_classes(loss, place.mesh)
        found = [many(X[own], labels[own], ids[own], proxies(sharded).detach()) for _ in range(2)][1]
        torch.testing.assert_close(found.log_p_clean, expected.log_p_clean[own], rtol=1e-10, atol=1e-10)
        assert torch.equal(found.keep, expected.keep[own])


@case(2, 3, 4)
def a_resumed_filter_goes_on(place):
    """From a single process's state, and from a checkpoint of another number of processes."""
    one = PRISM(C, D, **FILTERS["vmf_ids"])
    for X, labels, ids in steps(place):
        one.enqueue(X, labels, one(X, labels, ids).keep, ids)
    loaded = shard_classes(PRISM(C, D, **FILTERS["vmf_ids"]), place.mesh)
    loaded.load_state_dict(one.state_dict())
    same_state(one, loaded)
    dcp.save({"filter": loaded.state_dict()}, checkpoint_id=place.folder / f"filter-{place.size}")
    if place.size > 2:  # the world before this one had other batches
        other = shard_classes(PRISM(C, D, **FILTERS["vmf_ids"]), place.mesh)
        state = {"filter": other.state_dict()}
        dcp.load(state, checkpoint_id=place.folder / f"filter-{place.size - 1}")
        other.load_state_dict(state["filter"])
        assert other.bank.enqueued > 0
        recomputed = copy.deepcopy(other.bank)
        recomputed.recompute()
        close(recomputed.sums, other.bank.sums)
        assert torch.equal(recomputed.counts, other.bank.counts)
        assert other.bank.counts.sum() > 0 or other.bank.shards.first == C
    X, labels, ids = next(iter(steps(place, seed=9)))
    own = own_rows(place)
    assert torch.equal(loaded(X[own], labels[own], ids[own]).keep, one(X, labels, ids).keep[own])
    with pytest.raises(ValueError, match="was saved with shape"):
        loaded.load_state_dict(PRISM(C + 2, D, **FILTERS["vmf_ids"]).state_dict())


@case()
def a_bank_goes_on_elsewhere(place):
    """Saved by as many processes, loaded by one more; from one process's state, and back into one."""

    def filled():
        bank = MemoryBank(C, D, 31, torch.float64, num_samples=N)
        generator = torch.Generator().manual_seed(2)
        X = torch.randn(50, D, generator=generator, dtype=torch.float64)
        labels, ids = (torch.randint(n, (50,), generator=generator) for n in (C, N))
        bank.enqueue(X[:40], labels[:40], ids[:40])
        return bank, (X[40:], labels[40:], ids[40:])

    one, batch = filled()
    many = shard_classes(MemoryBank(C, D, 31, torch.float64, num_samples=N), place.mesh)
    if place.size == 1:
        many.load_state_dict(one.state_dict())
    else:  # what the world before this one has saved
        state = many.state_dict()
        dcp.load(state, checkpoint_id=place.folder / f"bank-{place.size - 1}")
        many.load_state_dict(state)
    same_state(one, many)
    dcp.save(many.state_dict(), checkpoint_id=place.folder / f"bank-{place.size}")
    own = slice(10 * place.rank // place.size, 10 * (place.rank + 1) // place.size)
    one.enqueue(*batch)
    many.enqueue(*(rows[own] for rows in batch))
    same_state(one, many)
    back, _ = filled()
    back.load_state_dict(get_model_state_dict(many, options=StateDictOptions(full_state_dict=True)))
    for name, value in one.state_dict().items():
        close(back.state_dict()[name], value)


@case()
def a_bank_alone(place):
    """Slots are divided, and the queue goes round: fewer slots than a batch, fewer than processes, more than both."""
    own = own_rows(place)
    for capacity, dtype in ((3, torch.float64), (31, torch.bfloat16), (75, torch.float64)):
        one, near = MemoryBank(C, D, capacity, dtype, num_samples=N), 1e-10 if dtype == torch.float64 else 1e-5
        many = shard_classes(copy.deepcopy(one), place.mesh)
        for step, (X, labels, ids) in enumerate(steps(place, 4)):
            keep = torch.arange(len(labels)) % 5 > step  # of the last batch none
            touched = one.enqueue(X, labels, ids, keep)
            found = many.enqueue(X[own], labels[own], ids[own], keep[own])
            assert torch.equal(found >= 0, (touched >= 0) & many.shards.owns_labels(touched))
            expected = one.others_of_class(ids, labels, 3)
            sums, counts = map(many.shards.sum_over_processes, many.others_of_class(ids, labels, 3))
            torch.testing.assert_close(sums, expected.sums, rtol=0, atol=near)
            assert torch.equal(counts, expected.counts)
        same_state(one, many)
        first, last = many.shards.shard_bounds(capacity)
        for buffer in (many.features, many.labels, many.sample_ids):
            assert len(buffer.to_local()) == last - first
        assert last - first <= -(-capacity // place.size)
        for bank in (one, many):
            bank.recompute()
        same_state(one, many)
    wrong = torch.full((2,), C if place.rank == place.size - 1 else 0)
    with pytest.raises(IndexError if place.rank == place.size - 1 else ShardError, match="is outside 0 … 8"):
        many.enqueue(torch.randn(2, D, dtype=torch.float64), wrong, wrong)
    same_state(one, many)
    before = many.labels.full_tensor()
    with pytest.raises(RuntimeError, match=r"size mismatch for features.*\[76, 6\].*\[75, 6\]"):
        many.load_state_dict(MemoryBank(C, D, 76, torch.float64, num_samples=N).state_dict())
    assert torch.equal(many.labels.full_tensor(), before)
