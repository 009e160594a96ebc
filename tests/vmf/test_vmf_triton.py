"""Triton's kernels of the von Mises–Fisher distribution against the eager functions."""

import pytest
import torch

from robustdml_ops.backends import choice
from robustdml_ops.ops.vmf import kernels
from robustdml_ops.ops.vmf.backends import BACKENDS
from tests.triton_here import DEVICE, MARKS
from tests.vmf.against_eager import FUNCTIONS, compare_fit, compare_function

# NumPy tells of overflows in lanes that are masked afterwards.
pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_against_eager(function):
    compare_function("triton", function, DEVICE)


def test_the_fit_against_eager():
    on_cpu = DEVICE.type == "cpu"
    assert compare_fit("triton", DEVICE, quick=on_cpu) == (6 if on_cpu else 102)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel can't be changed")
@pytest.mark.parametrize("factor", [1, -1])
@pytest.mark.usefixtures("self_check")
def test_a_kernel_that_flips_a_sign_is_put_aside(factor, monkeypatch):
    def flipped(*arguments, right=kernels.function_of):
        return factor * right(*arguments)

    monkeypatch.setattr(kernels, "function_of", flipped)
    monkeypatch.setitem(choice.PREFERENCE, "cpu", ("triton", "eager"))
    if factor == 1:
        assert choice.choose(BACKENDS, None, DEVICE, torch.float32) is BACKENDS["triton"]
        return
    with pytest.warns(RuntimeWarning, match="triton .* its self-check failed on cpu in log_bessel_i: its error is 2.0"):
        assert choice.choose(BACKENDS, None, DEVICE, torch.float32) is BACKENDS["eager"]
    with pytest.raises(RuntimeError, match=r"backend='triton' .* in log_bessel_i: its error is 2\.0"):
        choice.choose(BACKENDS, "triton", DEVICE, torch.float32)
