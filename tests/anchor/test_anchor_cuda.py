"""The anchor log-sum-exp in native CUDA against eager: on the GPU where there is one, in emulation everywhere."""

import pytest
import torch

from robustdml_ops.ops.anchor.problem import Wanted
from robustdml_ops.ops.anchor.sweep import BACKENDS
from tests.anchor.cases import EAGER, SETS, Case, assert_sweeps_agree
from tests.nightly import nightly_but

NATIVE = BACKENDS["native"]


@pytest.fixture(autouse=True)
def in_chunks(monkeypatch):
    """On the CPU, where the kernels are emulated, lanes would multiply."""
    monkeypatch.setattr("robustdml_ops.engine.lanes.matrix_product", lambda _: 0)


def check(case, device, dtype=torch.float32, want=None):
    """An exponent of size α has an error of α · ε, which is the relative error of its exponential."""
    ours, eager = (case.sweep(backend, device, dtype, want=want) for backend in (NATIVE, EAGER))
    assert_sweeps_agree(ours, eager, case.exact(want=want), roundings=4 * case.alpha)


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("shape", nightly_but([(33, 67, 3), (257, 9, 5)], [(33, 67, 3), (257, 9, 5), (5000, 7, 4)]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_eager(device, dtype, shape, sets):
    case = Case(shape, sets, beta=100.0)
    case.positive_bias[::9] = case.negative_bias[::9] = -torch.inf
    check(case, device, dtype)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("sets", ["labels", "confidences by sample", "logits"])
@pytest.mark.parametrize("upstream", ["none", "scalar", "vector"])
@pytest.mark.parametrize("alpha", [2.0, 500.0])
def test_alphas_and_upstreams(device, alpha, upstream, sets):
    case = Case((129, 40, 6), sets, alpha=alpha, anchor_bias=False)
    if upstream == "scalar":
        case.upstream = tuple(part[0] for part in case.upstream)
    check(case, device, want=Wanted(lse=True) if upstream == "none" else None)


def test_all_absent(device):
    """Weights of zero alone: no exponent is finite, both sums are empty."""
    case = Case((40, 9, 4), "labels")
    case.positive_bias[:] = case.negative_bias[:] = -torch.inf
    for name, result in vars(case.sweep(NATIVE, device)).items():
        assert not result.any(), name


@pytest.mark.parametrize("sets", ["labels", "confidences by sample"])
@pytest.mark.parametrize("B", nightly_but([257], [257, 5000]))
def test_same_bits_twice(device, B, sets):
    case = Case((B, 70, 4), sets)
    first, second = (case.sweep(NATIVE, device) for _ in range(2))
    for name, result in vars(first).items():
        assert torch.equal(getattr(second, name), result), name
