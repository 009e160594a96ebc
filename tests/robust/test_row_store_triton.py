"""Storing a batch by Triton and by plain PyTorch: the same bits in every buffer, the same classes updated."""

import copy
from dataclasses import replace

import pytest
import torch
from states import assert_same_state

from robustdml_ops.engine.labels import ELSEWHERE
from robustdml_ops.engine.shards import OneProcess
from robustdml_ops.ops.vmf.problem import Fitted
from robustdml_ops.robust import PRISM, MemoryBank
from robustdml_ops.robust.bank import row_store
from robustdml_ops.robust.prism.class_logits import LOGIT_WRITERS, LogitUpdate
from tests.triton_here import DEVICE, MARKS

pytestmark = MARKS
C, N = 6, 11


class SomeClasses(OneProcess):
    """Classes from 2 on are here, or none, the others on other processes."""

    divided = True

    def __init__(self, classes):
        self.classes = classes

    def to_local_labels(self, labels):
        return torch.where((labels >= 2) & (labels < 2 + self.classes), labels - 2, ELSEWHERE)


def banks(D, capacity, dtype=torch.float32, num_samples=None, here=C):
    made = []
    for backend in ("triton", "eager"):
        bank = MemoryBank(C, D, capacity, dtype, num_samples, backend=backend)
        if here < C:
            bank.sums, bank.counts = bank.sums[:here].clone(), bank.counts[:here].clone()
            bank.shards = SomeClasses(here)
        made.append(bank.to(DEVICE))
    return made


def batch_of(B, D, generator, classes=C, dtype=torch.float32):
    X = torch.randn(B, D, generator=generator, dtype=torch.float64).to(dtype)
    labels, ids = (torch.randint(n, (B,), generator=generator) for n in (classes, N))
    keep = torch.rand(B, generator=generator) < 0.7
    return [tensor.to(DEVICE) for tensor in (X, labels, ids, keep)]


def assert_same(triton, eager):
    """Bit for bit; on a GPU plain PyTorch sums repeated classes in another order."""
    for (name, found), expected in zip(triton.state_dict().items(), eager.state_dict().values(), strict=True):
        if name == "sums" and DEVICE.type == "cuda":
            torch.testing.assert_close(found, expected)
        else:
            assert torch.equal(found, expected), name


def store_in_both(both, batch):
    X, labels, ids, keep = batch
    touched = [bank.enqueue(X, labels, ids, keep) for bank in both]
    assert torch.equal(touched[0] < 0, touched[1] < 0)
    assert torch.equal(touched[0].clamp(min=-1), touched[1].clamp(min=-1))
    assert_same(*both)


@pytest.mark.parametrize(
    ("sizes", "D", "capacity", "dtype", "samples"),
    [
        ((7, 1, 9, 7, 30), 5, 12, torch.float32, N),  # the last batch is larger than the bank
        ((20, 13, 20), 40, 1, torch.float32, N),
        ((16, 5, 16), 600, 24, torch.bfloat16, None),  # several steps over the columns
        ((9, 9, 9), 3, 16, torch.float64, N),
        ((11, 11), 4, 300, torch.float16, None),  # never full
    ],
)
def test_same_bits_as_plain_pytorch(sizes, D, capacity, dtype, samples):
    generator, both = torch.Generator().manual_seed(D), banks(D, capacity, dtype, samples)
    for size in sizes:
        given = torch.float64 if dtype == torch.float64 else torch.float32
        store_in_both(both, batch_of(size, D, generator, dtype=given))
    assert int(both[0].enqueued) > 0


def test_batches_of_several_blocks(monkeypatch):
    """Repetitions of a class and of a sample lie in different steps of a search."""
    monkeypatch.setattr(row_store, "_BLOCK_B", 8)
    monkeypatch.setattr(row_store, "_BLOCK_M", 8)
    generator, both = torch.Generator().manual_seed(0), banks(3, 25, num_samples=N)
    for size in (21, 30):
        store_in_both(both, batch_of(size, 3, generator))


def test_nothing_kept_changes_nothing():
    generator, both = torch.Generator().manual_seed(0), banks(3, 5, num_samples=N)
    store_in_both(both, batch_of(4, 3, generator))
    before = copy.deepcopy(both[0])
    X, labels, ids, keep = batch_of(4, 3, generator)
    assert both[0].enqueue(X, labels, ids, torch.zeros_like(keep)).tolist() == [-1] * 8
    assert_same_state(both[0], before)
    assert both[0].enqueue(X[:0], labels[:0], ids[:0], keep[:0]).numel() == 0


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite_are_not_stored(value):
    """By way of `store`: on the CPU `enqueue` refuses them, and plain PyTorch does not look again."""
    X, labels, _, _ = batch_of(6, 20, torch.Generator().manual_seed(0))
    X[[1, 5], [0, 19]] = value
    for bank in banks(20, 4)[: 2 if DEVICE.type == "cuda" else 1]:
        batch = bank._check(torch.zeros_like(X), labels, None, None)[0]._replace(X=X)
        bank.store(batch, torch.ones_like(labels, dtype=torch.bool))
        assert torch.equal(bank.features, X[[0, 2, 3, 4]])
        assert bank.sums.isfinite().all()
        assert int(bank.counts.sum()) == 4


@pytest.mark.parametrize("classes", [3, 0])
def test_classes_of_other_processes(classes):
    """The queue is the same with some of the classes, though a batch enters it by a window."""
    generator, both = torch.Generator().manual_seed(0), banks(4, 10, num_samples=N, here=classes)
    _, whole = banks(4, 10, num_samples=N)
    for size in (8, 7, 14):
        X, labels, ids, keep = batch_of(size, 4, generator)
        touched = []
        for bank in both:
            batch, kept = bank._check(X, labels, ids, keep)
            touched.append(bank.store(batch, kept))
        assert torch.equal(*touched)
        assert_same(*both)
        whole.enqueue(X, labels, ids, keep)
        for name, expected in whole.state_dict().items():
            assert name in ("sums", "counts") or torch.equal(both[0].state_dict()[name], expected), name


def test_rows_of_the_bank_itself():
    """Rows that the batch overwrites are read before, whichever program comes first."""
    generator, both = torch.Generator().manual_seed(0), banks(4, 6)
    for size in (6, 2):
        X, labels, ids, keep = batch_of(size, 4, generator)
        store_in_both(both, (X, labels, ids, torch.ones_like(keep)))
    for bank in both:
        bank.enqueue(bank.features, bank.labels, bank.sample_ids, keep=bank.labels != bank.labels[3])
    assert_same(*both)


def test_inputs_of_any_strides():
    generator, both = torch.Generator().manual_seed(0), banks(4, 6, num_samples=N)
    X, labels, ids, keep = batch_of(5, 4, generator)
    by_column = [torch.stack([each, each], dim=1)[:, 0] for each in (labels, ids, keep)]
    store_in_both(both, (X.t().contiguous().t(), *by_column))
    both[1].recompute()
    torch.testing.assert_close(both[0].sums, both[1].sums)


@pytest.mark.parametrize("similarity", ["average", "vmf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_state_of_prism_step_by_step(similarity, dtype):
    """Rows, classes, their scales and biases; a batch of 9 touches more classes than there are, one of 2 does not."""
    settings = {"vmf": {"vmf_start": 1}, "average": {}}[similarity]
    filters = [
        PRISM(C, 8, similarity, 0.3, memory_size=14, num_samples=N, memory_dtype=dtype, **settings).to(DEVICE)
        for _ in range(2)
    ]
    for each, backend in zip(filters, ("triton", "eager"), strict=True):
        each.bank.backend = backend
    generator = torch.Generator().manual_seed(0)
    for size in (2, 9, 2, 2, 9):
        X, labels, ids, _ = batch_of(size, 8, generator, dtype=dtype)
        keep = filters[0](X, labels, ids).keep
        assert torch.equal(keep, filters[1](X, labels, ids).keep)
        for each in filters:
            each.enqueue(X, labels, keep, ids)
        found, expected = (dict(each.named_buffers()) for each in filters)
        exactly = {} if DEVICE.type == "cuda" else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(found, expected, equal_nan=True, **exactly)
    if similarity == "vmf":
        assert (filters[0].kappa > 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fits", [False, True])
def test_logits_of_more_classes_than_a_block(fits, dtype):
    generator, many = torch.Generator().manual_seed(0), 300
    counts = torch.randint(0, 4, (many,), generator=generator).to(DEVICE)
    kappa, log_peak = (50 * torch.rand(2, many, generator=generator, dtype=dtype)).to(DEVICE).unbind(0)
    length = torch.rand(many, generator=generator, dtype=torch.float64).to(DEVICE)
    length[:2], kappa[:2] = 0, 0
    for classes in (None, torch.randint(many, (200,), generator=generator).to(DEVICE)):
        found = []
        for write in LOGIT_WRITERS.values():
            written = torch.full((4, many), 7.0, dtype=dtype, device=DEVICE)
            update = LogitUpdate(classes, counts, written[0], written[1], -torch.inf)
            if fits:
                rows = slice(None) if classes is None else classes
                fitted = Fitted(kappa[rows], log_peak[rows], length[rows])
                update = replace(update, fitted=fitted, kappa=written[2], log_peak=written[3])
            write(update)
            found.append(written)
        assert torch.equal(*found)
        assert (found[0] != 7).any(dim=1).tolist() == [True, True, fits, fits]
