"""Otsu's cut in the native module, on the CPU and in CUDA, which is emulated where there is no GPU."""

import numpy as np
import pytest
import torch

from robustdml_ops.ops import otsu_confidence, otsu_threshold
from robustdml_ops.ops.lambert_w.backends import BACKENDS as LAMBERT_W
from robustdml_ops.ops.otsu import BACKENDS
from tests.otsu.otsu_oracle import ERROR, check, exact_cut

DTYPES = (torch.float32, torch.float64)


def compare(backend, dtype, device, lengths):
    """Against eager in every bit: ties, offsets, and what is not finite; with confidences the same as without."""
    for n in lengths:
        values = torch.randn(5, n, generator=torch.Generator().manual_seed(n), dtype=dtype)
        values[1] = values[1].round() + 1e6
        values[2] = values[2] * 1e-30
        values[3, ::3], values[4, ::5] = torch.nan, -torch.inf
        least = 1 + n % 3
        ours, theirs = (BACKENDS[name].otsu_cut(values.to(device), least) for name in (backend, "eager"))
        for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
            assert torch.equal(mine, other), (n, name, mine, other)
        threshold, sigma = otsu_confidence(values[0].to(device), 0.1, least, backend=backend)
        assert torch.equal(threshold, ours.threshold[0])
        assert torch.equal(sigma, LAMBERT_W[backend].confidence(values[0].to(device), threshold, 0.1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_eager(device, dtype):
    compare("native", dtype, device, (1, 2, 5, 31, 256, 257, 1024, 4097, 8192, 9000))


def ends_of(dtype):
    """Rows at the ends of the range, neighbours without a number between, and two zeros that are one value."""
    limits, infinity = torch.finfo(dtype), torch.tensor(torch.inf, dtype=dtype)
    for unit in (limits.max, limits.smallest_normal * limits.eps * 16):
        yield torch.tensor([-1, -1, -0.75, 0.5, 1, 1], dtype=dtype) * unit
    for low in torch.tensor([1, -3, 2 - limits.eps], dtype=dtype):
        yield torch.stack([low, torch.nextafter(low, infinity)] * 2)
    yield torch.tensor([0.0, -0.0] * 2, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ends_of_the_range(device, dtype, backend):
    for values in ends_of(dtype):
        cut = BACKENDS[backend].otsu_cut(values[None].to(device), 2)
        truth, place = exact_cut(values.tolist()), cut.index.item()
        assert (place, cut.found.item()) == (truth.index, truth.found)
        assert not cut.found or truth.ordered[place - 1] <= cut.threshold.item() < truth.ordered[place]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [31, 257, 1000])
def test_longer_rows_against_rational_numbers(n, dtype, backend):
    values = torch.randn(n, dtype=dtype) + 1e4
    values[::30] = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype).repeat(n)[: len(values[::30])]
    cut = otsu_threshold(values, backend=backend)
    check(values.tolist(), 2, *(column.item() for column in cut), eps=ERROR[dtype], exact=False)


def test_longer_rows_than_a_block_holds_are_refused(emulated):
    with pytest.raises(ValueError, match="too long"):
        emulated.otsu_cuda_f32(0, 1, 8193, 2, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [300, 9000, 300_000])
def test_threads_do_not_change_a_bit(n, dtype, threads):
    """300 000 values are shared by the threads."""
    values, results = torch.randn(n, dtype=dtype), []
    for count in (1, 2, 5):
        threads(count)
        results.append(torch.stack([column.double() for column in otsu_threshold(values, backend="native")]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    ordered = np.sort(values.double().numpy())
    groups, places = np.cumsum(ordered - ordered.mean())[:-1], np.arange(1, n)
    i = 1 + np.argmax(groups**2 / (places * (n - places)))
    _, index, *means, _, _ = results[0].tolist()
    assert index == i
    np.testing.assert_allclose(means, [ordered[:i].mean(), ordered[i:].mean()], rtol=1e-6)
