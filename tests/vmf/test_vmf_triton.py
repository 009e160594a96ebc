"""Triton's kernels of the von Mises–Fisher distribution against the eager functions."""

import pytest

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
