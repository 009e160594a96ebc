"""Otsu's threshold on tensors: against rational numbers on every backend, and at the edges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustdml_ops.ops import confidence, otsu_confidence, otsu_threshold
from tests.nightly import nightly_but
from tests.otsu.otsu_oracle import ERROR, check

CPU_BACKENDS = ("native", "eager")
DTYPES = [torch.float64, torch.float32]


def rows_of(cut):
    """One tuple of numbers a row."""
    return list(zip(*(column.reshape(-1).tolist() for column in cut), strict=True))


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", nightly_but([0, 1e6], [0, 100, 1e4, 1e6]))
def test_thousands_of_small_cases_against_rational_numbers(dtype, offset):
    """Integers and quarters are exact in both types, so the cut is the one and only; backends agree in every bit."""
    random = np.random.default_rng(int(offset))
    for n in range(1, 13):
        values = random.integers(0, 4 if n % 2 else 25, (50, n)) / 4 + offset
        losses = torch.from_numpy(values).to(dtype)
        cuts = [otsu_threshold(losses, backend=backend) for backend in CPU_BACKENDS]
        assert same(*cuts)
        for row, result in zip(losses.tolist(), rows_of(cuts[0]), strict=True):
            check(row, 2, *result, eps=ERROR[dtype])


floats = {
    dtype: st.floats(width=width, allow_nan=True, allow_infinity=True)
    for dtype, width in ((torch.float32, 32), (torch.float64, 64))
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_floats(dtype, data):
    losses = torch.tensor(data.draw(st.lists(floats[dtype], max_size=9)), dtype=dtype)
    min_group = data.draw(st.integers(1, 3))
    cuts = [otsu_threshold(losses, min_group, backend=backend) for backend in CPU_BACKENDS]
    assert same(*cuts)
    ((threshold, index, low_mean, high_mean, found, excluded),) = rows_of(cuts[0])
    scale = losses[losses.isfinite()].double().abs().max().item() if losses.isfinite().any() else 0.0
    # The oracle's quotients leave the range of a double, or a mean has no digits left to be right in.
    least = max(1e-150, torch.finfo(dtype).tiny)
    if scale > 1e150 or 0 < scale < least:
        assert math.isinf(threshold) != found
        return
    check(losses.tolist(), min_group, threshold, index, low_mean, high_mean, found, excluded, ERROR[dtype], exact=False)


def test_any_dimension_is_the_batch(backend):
    losses = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0))
    cut = otsu_threshold(losses, dim=1, backend=backend)
    assert all(column.shape == (3, 4) for column in cut)
    for i in range(3):
        for j in range(4):
            single = otsu_threshold(losses[i, :, j], backend=backend)
            assert all(a[i, j] == b for a, b in zip(cut, single, strict=True))
    assert otsu_threshold(losses[:, :0], dim=1, backend=backend).found.shape == (3, 4)


@pytest.mark.parametrize(
    ("values", "mean", "excluded"),
    [
        ([], 0.0, 0),
        ([2.0], 2.0, 0),
        ([1.0, 2.0, 6.0], 3.0, 0),
        ([4.0] * 9, 4.0, 0),
        ([0.0, 1.0, 1.0, 1.0], 0.75, 0),
        ([math.nan] * 5, 0.0, 5),
        ([math.inf, 1.0, 5.0, -math.inf, math.nan, 0.0], 2.0, 3),
    ],
)
def test_batches_without_a_cut_keep_everything(backend, values, mean, excluded):
    losses = torch.tensor(values)
    cut = otsu_threshold(losses, backend=backend)
    assert cut.threshold == math.inf
    assert not cut.found
    assert cut.index == len(values) - excluded
    assert cut.low_mean == cut.high_mean == mean
    assert cut.excluded == excluded
    assert (losses[~losses.isnan()] <= cut.threshold).all()


def test_no_gradient_and_any_layout():
    losses = torch.randn(40, 2, requires_grad=True)
    cut = otsu_threshold(losses[::2, 1])
    assert not any(column.requires_grad for column in cut)
    assert same(cut, otsu_threshold(losses.detach()[::2, 1].clone()))


def test_bad_arguments_name_themselves():
    with pytest.raises(ValueError, match="at least one dimension"):
        otsu_threshold(torch.tensor(1.0))
    with pytest.raises(ValueError, match="min_group must be an integer of at least 1, got 0"):
        otsu_threshold(torch.rand(4), min_group=0)
    for losses in (torch.tensor(1.0), torch.rand(2, 4)):
        with pytest.raises(ValueError, match=r"losses must be one batch, \(n,\), got shape .*take otsu_threshold"):
            otsu_confidence(losses, 1.0)
    with pytest.raises(ValueError, match="min_group must be an integer of at least 1, got 0"):
        otsu_confidence(torch.rand(4), 1.0, 0)
    with pytest.raises(ValueError, match=r"lam must be a positive number in the range of torch.float32, got -1"):
        otsu_confidence(torch.rand(4), -1)


def same_as_one_after_the_other(losses, lam, min_group, backend):
    threshold, sigma = otsu_confidence(losses, lam, min_group, backend=backend)
    expected = otsu_threshold(losses, min_group, backend=backend).threshold
    torch.testing.assert_close(threshold, expected, rtol=0, atol=0)
    expected = confidence(losses, expected, lam, backend=backend)
    torch.testing.assert_close(sigma, expected, rtol=0, atol=0, equal_nan=True)
    assert not (threshold.requires_grad or sigma.requires_grad)


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_threshold_and_confidence_are_those_of_two_calls(dtype, backend, data):
    losses = torch.tensor(data.draw(st.lists(floats[dtype], max_size=12)), dtype=dtype)
    same_as_one_after_the_other(
        losses, data.draw(st.sampled_from([0.1, 1, 1e6])), data.draw(st.integers(1, 3)), backend
    )


@pytest.mark.parametrize("n", [256, 20_000, 300_000])
def test_threshold_and_confidence_of_any_layout(n, backend):
    losses = torch.rand(n, 2, generator=torch.Generator().manual_seed(n)).square().requires_grad_()[:, 1]
    same_as_one_after_the_other(losses, 0.1, 2, backend)
    same_as_one_after_the_other(losses.bfloat16(), 0.1, 2, backend)


def test_registered_op(backend):
    losses = torch.randn(3, 30, generator=torch.Generator().manual_seed(0))
    torch.library.opcheck(torch.ops.robustdml_ops.otsu.default, (losses, 2, backend))
