"""Batches in which most samples have no pair are told, once; batches of P × K are not."""

import warnings
from functools import partial

import pytest
import torch

from robustdml_ops.losses import (
    BSPMLLoss,
    ContrastiveLoss,
    MemoryContrastiveLoss,
    MultiSimilarityLoss,
    NTXentLoss,
    SupConLoss,
    first_pairs,
)
from robustdml_ops.ops import ABSENT

B, D = 24, 6
LOSSES = {
    "contrastive": ContrastiveLoss,
    "multi-similarity": partial(MultiSimilarityLoss, epsilon=0.1),
    "bspml": BSPMLLoss,
    "supcon": SupConLoss,
    "ntxent": NTXentLoss,
    "memory": MemoryContrastiveLoss,
}


def plain_batch(generator):
    """Random samples of many classes."""
    return torch.randint(5000, (B,), generator=generator)


def balanced_batch(generator):
    """P × K."""
    return torch.randperm(5000, generator=generator)[: B // 4].repeat_interleave(4)


def told(loss, draw, number=first_pairs.STEPS + 2, **given):
    generator = torch.Generator().manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(number):
            X = torch.randn(B, D, generator=generator).requires_grad_()
            loss(X, draw(generator), **{name: make() for name, make in given.items()}).backward()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", LOSSES)
def test_a_plain_sampler_of_many_classes_is_told(name):
    loss = LOSSES[name]()
    found = told(loss, plain_batch)
    assert len(found) == 1
    share = found[0].split(" % of the samples of ")[0].removeprefix("in 100 steps ")
    assert 95 <= float(share) <= 100
    assert type(loss).__name__ in found[0]
    assert "P classes with K samples each" in found[0]
    assert loss.first_steps.over
    planned = [plan for plan in loss._plans.known.values() if plan is not None]
    assert planned, "the count has cost the plan"


@pytest.mark.parametrize("name", LOSSES)
def test_batches_of_classes_are_not(name):
    loss = LOSSES[name]()
    assert told(loss, balanced_batch) == []
    assert loss.first_steps.over


def test_absent_samples_are_neither_lonely_nor_partners():
    """Labels in pairs, one half of each absent: the other half is alone, and is all that counts."""
    pairs = torch.arange(B // 2).repeat_interleave(2)
    weights = partial(torch.tensor, [1.0, 0.0] * (B // 2))
    assert "100 % of the samples" in told(SupConLoss(), lambda _: pairs, sample_weights=weights)[0]
    ignored = torch.where(torch.arange(B) < 14, -1, torch.tensor([7, 8] * (B // 2)))
    assert told(SupConLoss(ignore_index=-1), lambda _: ignored) == []
    assert told(SupConLoss(), lambda _: ignored.masked_fill(ignored == -1, ABSENT)) == []


def test_what_a_miner_leaves():
    few = torch.tensor([0, 1])
    pairs = (few, few.flip(0), few, few + 4)
    triplets = (few, few.flip(0), few + 4)
    labels = torch.arange(4).repeat_interleave(6)
    for listed in (pairs, triplets):
        found = told(ContrastiveLoss(), lambda _: labels, indices_tuple=lambda listed=listed: listed)
        assert len(found) == 1
        assert "92 % of the samples" in found[0]
    all_of_them = torch.arange(B)
    listed = (all_of_them, all_of_them.roll(1), all_of_them, all_of_them.roll(6))
    assert told(ContrastiveLoss(), lambda _: labels, indices_tuple=lambda: listed) == []


def test_banks_and_evaluation_are_not_looked_at():
    bank, of_bank = torch.randn(3, D), torch.tensor([1, 2, 3])
    given = {"ref_emb": lambda: bank, "ref_labels": lambda: of_bank}
    loss = ContrastiveLoss()
    assert told(loss, plain_batch, **given) == []
    assert told(loss.eval(), plain_batch) == []
    assert loss.first_steps.calls == 0
