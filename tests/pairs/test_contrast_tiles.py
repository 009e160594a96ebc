"""Contrasts by tiles on the CPU, with several tiles: against the eager sums in float64."""

import pytest
import torch

from robustdml_ops.losses import InfoNCELoss, SupConLoss
from robustdml_ops.ops.pairs import compiled_backends as native
from robustdml_ops.ops.pairs import sweep as sweeps
from robustdml_ops.ops.pairs.sweep import BACKENDS
from tests.pairs.cases import FIELDS, assert_same_as_eager, sweep

CASES = ("outside", "inside", "each", "steep")


@pytest.fixture(autouse=True)
def two_threads_and_tiles_for_every_size(threads, monkeypatch):
    threads(2)
    for least in ("_WHOLE", "_EACH_PAYS"):
        monkeypatch.setattr(sweeps, least, 0)


def test_small_batches_take_no_tiles(monkeypatch):
    """Tiles win beyond 1,024 rows, those of NT-Xent from some 2,048 rows of 512 columns on."""
    monkeypatch.undo()
    sizes = ((1024, 512), (2048, 128), (2048, 512), (8192, 4))
    pay = {form: [sweeps.tiles_pay(form, torch.empty(size, device="meta")) for size in sizes] for form in CASES[:3]}
    assert pay["each"] == [False, False, True, True]
    assert pay["outside"] == pay["inside"] == [False, True, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_same_as_eager(name, dtype):
    for n in (130, 257):
        assert_same_as_eager(BACKENDS["native"], name, (n, None, 9), dtype, "cpu")


@pytest.mark.parametrize("name", CASES)
def test_same_bits_whether_tiles_stay_or_are_made_again(name, monkeypatch):
    stored = sweep(BACKENDS["native"], name, (257, None, 9), torch.float32, "cpu")
    for bytes_ in (0, 5 * 4 * 128**2):
        monkeypatch.setattr(native, "_S_BYTES", bytes_)
        again = sweep(BACKENDS["native"], name, (257, None, 9), torch.float32, "cpu")
        for field in FIELDS:
            assert getattr(stored, field) is None or torch.equal(getattr(stored, field), getattr(again, field)), field


@pytest.mark.parametrize("bytes_", [0, 1 << 20])
@pytest.mark.parametrize("m", [0, 90])
def test_two_towers(bytes_, m, monkeypatch):
    monkeypatch.setattr(native, "_S_BYTES", bytes_)
    generator = torch.Generator().manual_seed(0)
    a, b, more = (torch.randn(n, 9, generator=generator, dtype=torch.float64) for n in (200, 200, m))
    weights = torch.rand(200, generator=generator, dtype=torch.float64).masked_fill(torch.arange(200) % 5 == 0, 0)
    results = []
    for backend in ("native", "eager"):
        loss = InfoNCELoss(temperature=0.02, backend=backend).double()
        leaves = [tensor.clone().requires_grad_() for tensor in (a, b, more)[: 3 if m else 2]]
        value = loss(*leaves, sample_weights=weights)
        results.append([value.detach(), *torch.autograd.grad(value, [*leaves, loss.logit_scale])])
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


def test_rows_of_extreme_length():
    X = torch.randn(70, 5, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 70)[:, None]
    results = []
    for rows, backend in ((X, "native"), (X.double(), "eager")):
        leaf = rows.requires_grad_()
        value = SupConLoss(backend=backend)(leaf, torch.arange(70) // 2)
        gradient = torch.autograd.grad(value, leaf)[0].double() * X.detach().double().norm(dim=1)[:, None]
        results.append([value.detach().double(), gradient])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
