"""The native anchor log-sum-exp, on the CPU and in CUDA, which is emulated where there is no GPU, against eager."""

import pytest
import torch

from robustdml_ops.ops.anchor.backends import ConfidenceSets, Wanted
from robustdml_ops.ops.anchor.sweep import BACKENDS
from tests.anchor.cases import EAGER, EDGES, SETS, Case, assert_sweeps_agree
from tests.nightly import nightly_but

NATIVE = BACKENDS["native"]
# A single sample or proxy, sizes around the vector and warp widths, several blocks, more than one pass of a block.
SHAPES = [(1, 1, 1), (31, 1, 3), (33, 67, 3), (32, 63, 4), (257, 9, 5), (600, 5, 3), (5000, 2, 4)]


def check(case, device, dtype=torch.float32, want=None):
    """An exponent of size α has an error of α · ε, which is the relative error of its exponential."""
    ours, eager = (case.sweep(backend, device, dtype, want=want) for backend in (NATIVE, EAGER))
    assert_sweeps_agree(ours, eager, case.exact(want=want), roundings=8 + 4 * case.alpha)


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, torch.float32) for shape in SHAPES), *((shape, torch.float64) for shape in SHAPES[1::2])],
)
def test_against_eager(device, dtype, shape, sets):
    case = Case(shape, sets, beta=100.0)
    case.positive_bias[::9] = case.negative_bias[::9] = -torch.inf
    check(case, device, dtype)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("sets", ["labels", "confidences by sample", "logits"])
@pytest.mark.parametrize("want", [Wanted(lse=True), Wanted(lse=True, embeddings=True, proxies=True), None])
@pytest.mark.parametrize("alpha", [2.0, 500.0])
def test_alphas_and_what_is_wanted(device, alpha, want, sets):
    check(Case((129, 40, 6), sets, alpha=alpha, anchor_bias=False), device, want=want)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", nightly_but([torch.float32], [torch.float32, torch.float64]))
@pytest.mark.parametrize("edge", EDGES)
def test_edges(device, edge, dtype):
    check(EDGES[edge](), device, dtype)


@pytest.mark.parametrize("B", [0, 40])
def test_nobody_present(device, B):
    """No samples, or weights of zero alone: no exponent is finite, both sums are empty."""
    case = Case((B, 9, 4), "labels")
    case.positive_bias[:] = case.negative_bias[:] = -torch.inf
    for name, result in vars(case.sweep(NATIVE, device)).items():
        assert not result.any(), name


@pytest.mark.parametrize("sets", ["labels", "confidences by sample"])
@pytest.mark.parametrize("B", [257, 600])
def test_same_bits_twice(device, B, sets, threads, monkeypatch):
    """With several threads, and with those of a block in another order."""
    threads(3)
    case = Case((B, 20, 4), sets)
    first = case.sweep(NATIVE, device)
    monkeypatch.setenv("ROBUSTDML_EMULATION_REVERSE", "1")
    for name, result in vars(case.sweep(NATIVE, device)).items():
        assert torch.equal(getattr(first, name), result), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_of_confidences(dtype, native, threads):
    """Smallest and largest of each column, NaN where there is one, of part of a matrix."""
    values = torch.randn(40, 5000, dtype=dtype)[:, 3:]
    values[7, 100], values[-1, -1] = torch.nan, torch.inf
    for count in (1, 3):
        threads(count)
        lowest, highest = torch.empty(2, values.shape[1], dtype=dtype)
        assert ConfidenceSets(1.0, 0.5, values).extremes(lowest, highest)
        torch.testing.assert_close((lowest, highest), (values.amin(0), values.amax(0)), equal_nan=True, rtol=0, atol=0)
    assert not ConfidenceSets(1.0, 0.5, values.t().contiguous().t()).extremes(lowest, highest)
