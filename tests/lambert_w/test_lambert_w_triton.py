"""Triton's kernels of Lambert's W and its confidences against the eager ones."""

import pytest
import torch

from robustdml_ops.backends import dispatch
from robustdml_ops.ops.lambert_w import kernels
from robustdml_ops.ops.lambert_w.backends import BACKENDS
from tests.lambert_w.test_lambert_w_native import DTYPES, compare
from tests.triton_here import DEVICE, MARKS

# NumPy tells of overflows in lanes that are masked afterwards.
pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_eager(dtype):
    compare("triton", dtype, DEVICE)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel can't be changed")
@pytest.mark.parametrize("factor", [1, -1])
@pytest.mark.usefixtures("self_check")
def test_a_kernel_that_flips_a_sign_is_put_aside(factor, monkeypatch):
    def flipped(x, with_sigma, right=kernels.w_and_sigma):
        w, sigma = right(x, with_sigma)
        return factor * w, sigma

    monkeypatch.setattr(kernels, "w_and_sigma", flipped)
    monkeypatch.setitem(dispatch.PREFERENCE, "cpu", ("triton", "eager"))
    if factor == 1:
        assert dispatch.choose(BACKENDS, None, DEVICE, torch.float32) is BACKENDS["triton"]
        return
    with pytest.warns(RuntimeWarning, match="triton .* its self-check failed on cpu in lambertw: its error is 2.0"):
        assert dispatch.choose(BACKENDS, None, DEVICE, torch.float32) is BACKENDS["eager"]
    with pytest.raises(RuntimeError, match=r"backend='triton' .* in lambertw: its error is 2\.0"):
        dispatch.choose(BACKENDS, "triton", DEVICE, torch.float32)
