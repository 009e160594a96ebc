"""The memory bank: a batch in, the oldest rows out, against the copies alone. Neither C nor the capacity may matter."""

from itertools import count

import pytest
import torch

from robustdml_ops.robust import MemoryBank
from robustdml_ops.robust.prism.class_logits import VmfClasses

from .device import DEVICE

B, D = 256, 128
SIZES = [(C, capacity) for C in (10_000, 1_000_000) for capacity in (10_000, 1_000_000)]


def full_bank(C, capacity, dtype):
    """Rows of the state itself: a million of them are not enqueued one batch at a time."""
    torch.manual_seed(0)
    bank = MemoryBank(C, D, capacity, dtype=dtype).to(DEVICE)
    bank.features.normal_()
    bank.labels.random_(C)
    bank.enqueued.fill_(capacity)
    bank.recompute()
    return bank


def check():
    """What is timed keeps the sums of what the bank holds."""
    bank = full_bank(50, 1000, torch.float32)
    for _ in range(7):
        bank.enqueue(torch.randn(B, D, device=DEVICE), torch.randint(50, (B,), device=DEVICE))
    exact = torch.zeros(50, D, dtype=torch.float64, device=DEVICE).index_add_(0, bank.labels, bank.features.double())
    torch.testing.assert_close(bank.sums.double(), exact, rtol=1e-4, atol=1e-4)
    assert torch.equal(bank.counts, bank.labels.bincount(minlength=50))


def copies(bank, batches):
    """Rows into their slots, and twice B rows into the sums: what any bank must move."""
    slots = torch.arange(B, device=DEVICE)
    numbers = count()

    def step():
        number = next(numbers)
        features, labels = batches[number % len(batches)]
        at = (slots + number * B) % bank.capacity
        leaving = bank.features[at]
        bank.sums.index_add_(0, labels, features)
        bank.sums.index_add_(0, labels, leaving.float(), alpha=-1)
        bank.features.index_copy_(0, at, features.to(bank.features.dtype))

    return step


@pytest.mark.parametrize("contender", ["robustdml/enqueue", "robustdml/enqueue bfloat16", "robustdml/enqueue and vMF"])
@pytest.mark.parametrize(("C", "capacity"), SIZES, ids=lambda size: f"{size:.0e}".replace("e+0", "e"))
def test_enqueue(timed, contender, C, capacity):
    check()
    dtype = torch.bfloat16 if "bfloat16" in contender else torch.float32
    bank, vmf = full_bank(C, capacity, dtype), VmfClasses(C, D).to(DEVICE)
    batches = [(torch.randn(B, D, device=DEVICE), torch.randint(C, (B,), device=DEVICE)) for _ in range(64)]
    keep = torch.rand(B, device=DEVICE) < 0.5
    numbers = count()

    def step():
        features, labels = batches[next(numbers) % len(batches)]
        touched = bank.enqueue(features, labels, keep=keep)
        if "vMF" in contender:
            vmf.refresh(bank, touched)

    group = f"bank, B={B} C={C:.0e} capacity={capacity:.0e} D={D}".replace("e+0", "e")
    timed(step, copies(full_bank(C, capacity, dtype), batches), group=group, contender=contender, rounds=200)
