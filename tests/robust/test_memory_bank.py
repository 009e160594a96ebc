"""The bank against a list of rows: what is in it, what its classes sum to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from states import assert_same_state, needs_gpu
from torch.utils._python_dispatch import TorchDispatchMode

from robustdml_ops.robust import PRISM, MemoryBank
from robustdml_ops.robust.bank import memory_bank
from robustdml_ops.robust.prism.class_logits import VmfClasses
from tests.storages import Storages

C, D, N = 5, 3, 9
# What PRISM is asked for, and how its bank then stores rows.
BACKENDS = {None: None, "native": "eager", "triton": "triton", "eager": "eager"}


class Brute:
    """A list of (row, label, id), the oldest first, and loops."""

    def __init__(self, capacity):
        self.capacity, self.rows = capacity, []

    def enqueue(self, features, labels, ids, keep):
        before = list(self.rows)
        batch = zip(features.tolist(), labels.tolist(), ids.tolist(), keep.tolist(), strict=True)
        self.rows += [(row, label, id) for row, label, id, kept in batch if kept]
        self.rows = self.rows[-self.capacity :]
        return {k for k in range(C) if [r for r in before if r[1] == k] != [r for r in self.rows if r[1] == k]}

    def statistics(self, k, without=None):
        rows = [row for row, label, id in self.rows if label == k and id != without]
        return [sum(column) for column in zip(*rows, strict=True)] or [0.0] * D, len(rows)


def batch_of(size, generator, classes=C):
    """Multiples of 1/8, which float32 sums, and bfloat16 stores, without rounding."""
    features = torch.randint(-16, 17, (size, D), generator=generator) / 8
    labels = torch.randint(classes, (size,), generator=generator)
    ids = torch.randint(N, (size,), generator=generator)
    return features, labels, ids, torch.rand(size, generator=generator) < 0.7


def contents(bank):
    """The rows of the bank as `Brute` lists them."""
    enqueued = int(bank.enqueued)
    slots = [i % bank.capacity for i in range(max(0, enqueued - bank.capacity), enqueued)]
    buffers = (bank.features.float(), bank.labels, bank.sample_ids)
    return list(zip(*(buffer[slots].tolist() for buffer in buffers), strict=True))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    capacity=st.integers(1, 50),
    sizes=st.lists(st.integers(0, 60), max_size=8),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**32),
)
def test_is_a_list(capacity, sizes, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    bank, brute = MemoryBank(C, D, capacity, dtype=dtype, num_samples=N), Brute(capacity)
    for size in sizes:
        features, labels, ids, keep = batch_of(size, generator)
        touched = bank.enqueue(features, labels, ids, keep)
        changed = brute.enqueue(features, labels, ids, keep)
        assert len(touched) == 2 * min(size, capacity)
        assert changed <= set(touched.tolist()) - {-1}
        assert contents(bank) == brute.rows
        for k in range(C):
            assert (bank.sums[k].tolist(), int(bank.counts[k])) == brute.statistics(k)
        others = bank.others_of_class(ids, labels, max_copies=capacity)
        expected = [brute.statistics(k, i) for k, i in zip(labels.tolist(), ids.tolist(), strict=True)]
        assert list(zip(others.sums.tolist(), others.counts.tolist(), strict=True)) == expected


def test_sums_do_not_depend_on_threads_repetition_or_mode(threads):
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(300, 64, generator=generator), torch.randint(4, (300,))) for _ in range(5)]
    banks = []
    for count, mode in ((1, False), (2, False), (2, False), (2, True)):
        threads(count)
        torch.use_deterministic_algorithms(mode)
        banks.append(MemoryBank(4, 64, capacity=500))
        for features, labels in batches:
            banks[-1].enqueue(features, labels)
    for bank in banks[1:]:
        assert_same_state(banks[0], bank)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 1e-7), (torch.float32, 1e-5)])
def test_drift_after_many_updates(dtype, bound):
    generator = torch.Generator().manual_seed(0)
    bank = MemoryBank(10, 32, capacity=300, dtype=dtype)
    for _ in range(600):
        features = torch.nn.functional.normalize(torch.randn(16, 32, generator=generator) + 0.3)
        bank.enqueue(features, torch.randint(10, (16,), generator=generator))
    exact = torch.zeros(10, 32, dtype=torch.float64).index_add_(0, bank.labels, bank.features.double())
    assert torch.equal(bank.counts, bank.labels.bincount(minlength=10))
    assert (bank.sums - exact).norm() / exact.norm() < bound
    bank.sums.mul_(2)
    bank.counts.add_(1)
    bank.recompute()
    assert torch.equal(bank.counts, bank.labels.bincount(minlength=10))
    assert (bank.sums - exact).norm() / exact.norm() < 2e-7


def test_recompute_in_parts_and_gradients_end(monkeypatch):
    monkeypatch.setattr(memory_bank, "_RECOMPUTE_ROWS", 4)
    bank = MemoryBank(C, D, capacity=23)
    features, labels, _, _ = batch_of(19, torch.Generator().manual_seed(0))
    bank.enqueue(features.requires_grad_(), labels.int())
    assert not (bank.sums.requires_grad or bank.features.requires_grad)
    sums, counts = bank.sums.clone(), bank.counts.clone()
    bank.sums.fill_(7)
    bank.recompute()
    assert torch.equal(bank.sums, sums)
    assert torch.equal(bank.counts, counts)


def test_a_class_that_leaves_is_zero_again():
    bank = MemoryBank(2, 2, capacity=3)
    bank.enqueue(torch.tensor([[0.1, 0.2], [0.7, 0.3], [0.05, 1e-9]]), torch.tensor([1, 1, 1]))
    bank.enqueue(torch.ones(3, 2), torch.tensor([0, 0, 0]))
    assert bank.sums[1].tolist() == [0, 0]
    assert bank.class_means().tolist() == [[1, 1], [0, 0]]
    assert bank.class_means(torch.tensor([1, 0, 0])).tolist() == [[0, 0], [1, 1], [1, 1]]


def test_cost_depends_on_neither_classes_nor_capacity():
    B, width = 16, 8
    largest = []
    for classes, capacity in ((100, 100), (100, 50_000), (50_000, 100), (50_000, 50_000)):
        bank = MemoryBank(classes, width, capacity, num_samples=50_000)
        refreshed = VmfClasses(classes, width)
        batch = torch.randn(B, width), torch.randint(100, (B,)), torch.arange(B), torch.rand(B) < 0.5
        with Storages([*bank.buffers(), *refreshed.buffers(), *batch]) as storages:
            touched = bank.enqueue(*batch)
            refreshed.refresh(bank, touched)
            bank.others_of_class(batch[2], batch[1], max_copies=2)
        largest.append(storages.largest)
    assert set(largest) == {2 * B * width * batch[0].element_size()}


class LargestShare(TorchDispatchMode):
    """How often one class occurs among those that an operation adds rows to."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.index_add_.default:
            self.largest = max(self.largest, int(args[2].bincount().max()))
        return function(*args, **(kwargs or {}))


def test_padding_is_spread_over_the_classes():
    """CUDA adds rows of one class one after the other: what pads a batch, or an empty bank, must not all be of one."""
    bank = MemoryBank(num_classes=1000, embedding_size=2, capacity=4096)
    features, labels = torch.ones(512, 2), torch.arange(512)
    with LargestShare() as share:
        bank.enqueue(features, labels, keep=labels < 3)
        bank.recompute()
    assert 0 < share.largest <= 6
    assert bank.counts.sum() == 3
    assert torch.equal(bank.sums[:4], torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gpu_equals_cpu(dtype, no_waiting):
    generator = torch.Generator().manual_seed(0)
    banks = [MemoryBank(C, D, 40, dtype, num_samples=N).to(device) for device in ("cpu", "cuda", "cuda")]
    for _ in range(10):
        batch = batch_of(24, generator)
        on_gpu = [tensor.cuda() for tensor in batch]
        banks[0].enqueue(*batch)
        with no_waiting():
            for bank in banks[1:]:
                bank.enqueue(*on_gpu)
                bank.others_of_class(on_gpu[2], on_gpu[1], 2)
    for bank in banks[1:]:
        assert_same_state(banks[0], bank.cpu())


def test_own_copies_of_another_label_and_beyond_the_limit_stay():
    bank = MemoryBank(2, 1, capacity=8, num_samples=2)
    bank.enqueue(torch.tensor([[1.0], [2.0], [4.0], [8.0]]), torch.tensor([0, 0, 1, 0]), torch.tensor([1, 1, 1, 0]))

    def others(label, max_copies=8):
        found = bank.others_of_class(torch.tensor([1]), torch.tensor([label]), max_copies)
        return float(found.sums), int(found.counts)

    assert others(0) == (8, 1)
    assert others(0, max_copies=2) == (9, 2)  # a step goes to the copy with label 1
    assert others(1) == (0, 0)


def test_buffers_keep_their_types():
    assert MemoryBank(2, 2, 3, torch.bfloat16).double().features.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"holds torch.bfloat16 and this one torch.float32: .*dtype=torch.bfloat16"):
        MemoryBank(2, 2, 3, num_samples=4).load_state_dict(MemoryBank(2, 2, 3, torch.bfloat16).state_dict())


def test_a_row_too_large_for_the_type_of_the_bank():
    with pytest.raises(ValueError, match=r"features\[0\] has NaN or inf: .* or in torch.float16"):
        MemoryBank(1, 1, 1, torch.float16).enqueue(torch.tensor([[1e5]]), torch.tensor([0]))


def test_storing_compiles_without_a_graph_break():
    features, labels, _, keep = batch_of(6, torch.Generator().manual_seed(0))
    compiled, eager = MemoryBank(C, D, 9), MemoryBank(C, D, 9)
    torch.compile(compiled.enqueue, backend="eager", fullgraph=True)(features, labels, keep=keep)
    eager.enqueue(features, labels, keep=keep)
    assert_same_state(compiled, eager)


def test_how_rows_are_stored_can_be_chosen(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    X, labels = torch.ones(2, 3), torch.tensor([0, 1])
    with pytest.raises(RuntimeError, match=r"backend='triton' can't run here"):
        MemoryBank(2, 3, capacity=4, backend="triton").enqueue(X, labels)
    with pytest.raises(ValueError, match="backend='tritn': expected one of"):
        MemoryBank(2, 3, capacity=4, backend="tritn").enqueue(X, labels)
    chosen = {backend: PRISM(2, 3, noise_rate=0.5, memory_size=4, backend=backend).bank for backend in BACKENDS}
    assert {backend: bank.backend for backend, bank in chosen.items()} == BACKENDS
    chosen["native"].enqueue(X, labels)
    assert chosen["native"].counts.tolist() == [1, 1]
