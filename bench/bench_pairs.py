"""Losses on pairs: one step against pytorch-metric-learning and against the matrix products alone; the sweep N×N."""

from functools import partial

import pytest
import torch

from robustdml_ops.python_ref import contrastive_loss, multi_similarity_loss, nt_xent_loss, supcon_loss

from .families import FAMILIES, assert_same
from .pair_workloads import MS, PairShape, PairWorkload

USUAL, LARGE = PairShape(256, 128), PairShape(1024, 512)
# Mining leaves more pairs where labels are wrong: the least similar positive is then a stranger.
NOISY = PairShape(1024, 512, wrong=50)
MANY = PairShape(4096, 512)
BANK, ALL = PairShape(256, 128, 100_000), PairShape(60_000, 128)
QUEUE = PairShape(256, 128, 8192)
TOWERS, MANY_TOWERS = PairShape(4096, 512, 4096), PairShape(65_536, 512, 65_536)

# contender, shape, products of the batch with itself, products with the bank
STEPS = [
    (contender, shape, of_batch, of_bank)
    for kind, shape, of_batch, of_bank in (
        ("ms", USUAL, 3, 0),
        ("ms", NOISY, 3, 0),
        ("ms", LARGE, 3, 0),
        ("contrastive", LARGE, 3, 0),
        ("supcon", MANY, 3, 0),
        ("nt-xent", MANY, 3, 0),
        ("memory", BANK, 3, 2),
    )
    for contender in FAMILIES[kind].contenders(kind)
]
STEPS += [(f"{who}/miner's pairs", NOISY, 3, 0) for who in ("robustdml", "pml", "torch", "compile")]
STEPS += [(f"{who}/queue", QUEUE, 0, 2) for who in ("robustdml", "pml")]
STEPS += [("robustdml/ms none", LARGE, 3, 0), ("robustdml/sigmoid", TOWERS, 0, 3)]
REFERENCES = {
    "ms": partial(multi_similarity_loss, **MS, epsilon=0.1),
    "contrastive": partial(contrastive_loss, pos_margin=1, neg_margin=0.5, distance="cosine"),
    "supcon": supcon_loss,
    "nt-xent": nt_xent_loss,
}


def check(what: str) -> None:
    """Ours agrees with the reference where there is one, at a small size; the tests compare the others."""
    workload = PairWorkload(PairShape(64, 16))
    if reference := REFERENCES.get(what.split()[0]):
        truth = reference(workload.embeddings, workload.labels)
        expected = [truth.detach(), torch.autograd.grad(truth, workload.embeddings)[0]]
        assert_same(workload.contender(f"robustdml/{what}")(), expected)


@pytest.mark.parametrize(("contender", "shape", "of_batch", "of_bank"), STEPS, ids=str)
def test_step(timed, contender, shape, of_batch, of_bank):
    who, _, what = contender.partition("/")
    check(what)
    workload = PairWorkload(shape)
    step = workload.contender(contender)
    if who != "robustdml" and contender != "pml/memory":  # which differs by design
        assert_same(step(), workload.contender(f"robustdml/{what}")())
    timed(
        step,
        workload.products(of_batch, of_bank),
        group=f"pairs, {what.removesuffix(' none')}, {shape}",
        contender=contender,
        rounds=100 if shape is USUAL else 15 if who == "robustdml" else 5,
        flops=2.0 * shape.B * shape.D * (of_batch * shape.B + of_bank * shape.m),
    )


@pytest.mark.parametrize("what", ["ids", "labels", "observed"])
@pytest.mark.parametrize("shape", [LARGE, PairShape(8192, 512)], ids=str)
@pytest.mark.parametrize("kind", ["ms", "contrastive", "supcon", "nt-xent"])
def test_ids_labels_and_observation(timed, kind, shape, what):
    """The floor is the plain step of the same loss."""
    workload = PairWorkload(shape)
    timed(
        workload.related(kind, what),
        workload.related(kind, "plain"),
        group=f"pairs, {kind} beside the plain step, {shape}",
        contender=f"robustdml/{kind} {what}",
        rounds=15 if shape is LARGE else 5,
        flops=None,
    )


def test_sweep_over_all_pairs(timed):
    """Every sample of a training set against every other, mining included, nothing N×N."""
    workload = PairWorkload(ALL)
    timed(
        workload.contender("robustdml/sweep"),
        workload.products(1, 0),
        group=f"pairs, sweep, {ALL}",
        contender="robustdml/sweep",
        rounds=1,
        flops=2.0 * ALL.B**2 * ALL.D,
    )


@pytest.mark.parametrize(
    ("contender", "shape"),
    [
        ("robustdml/ms", LARGE),
        ("pml/ms", LARGE),
        ("robustdml/memory", BANK),
        ("pml/memory", BANK),
        ("robustdml/sweep", ALL),
        ("robustdml/info-nce", MANY_TOWERS),
        ("robustdml/sigmoid", MANY_TOWERS),
    ],
    ids=str,
)
def test_memory(in_own_process, contender, shape):
    sizes = (shape.B, shape.D, shape.m)
    in_own_process("pair_workloads", contender, *sizes, group=f"memory of pairs, {shape}", contender=contender)
