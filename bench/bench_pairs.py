"""Losses on pairs: one step against pytorch-metric-learning and against the matrix products alone; the sweep N×N."""

import pytest
import torch

from robustdml_ops.python_ref import contrastive_loss, multi_similarity_loss, nt_xent_loss, supcon_loss

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
    ("robustdml/ms", USUAL, 3, 0),
    ("pml/ms", USUAL, 3, 0),
    ("robustdml/ms", NOISY, 3, 0),
    ("pml/ms", NOISY, 3, 0),
    ("robustdml/ms", LARGE, 3, 0),
    ("robustdml/ms none", LARGE, 3, 0),
    ("pml/ms", LARGE, 3, 0),
    ("reference/ms", LARGE, 3, 0),
    ("robustdml/contrastive", LARGE, 3, 0),
    ("pml/contrastive", LARGE, 3, 0),
    ("robustdml/supcon", MANY, 3, 0),
    ("robustdml/nt-xent", MANY, 3, 0),
    ("reference/supcon", MANY, 3, 0),
    ("pml/supcon", MANY, 3, 0),
    ("robustdml/sigmoid of two towers", TOWERS, 0, 3),
    ("robustdml/memory", BANK, 3, 2),
    ("pml/memory", BANK, 3, 2),
    ("robustdml/ms, a miner's pairs", NOISY, 3, 0),
    ("pml/ms, a miner's pairs", NOISY, 3, 0),
    ("robustdml/queue of the peer", QUEUE, 0, 2),
    ("pml/queue of the peer", QUEUE, 0, 2),
]


def check(contender: str) -> None:
    """The contender agrees with the reference, or with the peer where there is none, at a small size."""
    workload = PairWorkload(PairShape(64, 16, 300 if "memory" in contender or "queue" in contender else 0))
    if "queue" in contender:
        expected = workload.contender("pml/queue of the peer")()
    elif "ms" in contender:
        truth = multi_similarity_loss(workload.embeddings, workload.labels, **MS, epsilon=0.1)
        expected = [truth.detach(), torch.autograd.grad(truth, workload.embeddings)[0]]
    elif "contrastive" in contender:
        margins = {"pos_margin": 1, "neg_margin": 0.5, "distance": "cosine"}
        truth = contrastive_loss(workload.embeddings, workload.labels, **margins)
        expected = [truth.detach(), torch.autograd.grad(truth, workload.embeddings)[0]]
    elif "supcon" in contender or "nt-xent" in contender:
        truth = (supcon_loss if "supcon" in contender else nt_xent_loss)(workload.embeddings, workload.labels)
        expected = [truth.detach(), torch.autograd.grad(truth, workload.embeddings)[0]]
    else:
        return  # ours and the peer's differ by design; the tests compare ours with the reference
    for mine, other in zip(workload.contender(contender)(), expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


@pytest.mark.parametrize(("contender", "shape", "of_batch", "of_bank"), STEPS, ids=str)
def test_step(timed, contender, shape, of_batch, of_bank):
    check(contender)
    workload = PairWorkload(shape)
    timed(
        workload.contender(contender),
        workload.products(of_batch, of_bank),
        group=f"pairs, {contender.split('/')[1].removesuffix(' none')}, {shape}",
        contender=contender,
        rounds=100 if shape is USUAL else 15 if contender.startswith("robustdml") else 5,
        flops=2.0 * shape.B * shape.D * (of_batch * shape.B + of_bank * shape.m),
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
        ("robustdml/info-nce of two towers", MANY_TOWERS),
        ("robustdml/sigmoid of two towers", MANY_TOWERS),
    ],
    ids=str,
)
def test_memory(in_own_process, contender, shape):
    sizes = (shape.B, shape.D, shape.m)
    in_own_process("pair_workloads", contender, *sizes, group=f"memory of pairs, {shape}", contender=contender)
