"""Triton's kernels of Lambert's W and its confidences against the eager ones."""

import pytest

from tests.lambert_w.test_lambert_w_native import DTYPES, compare
from tests.triton_here import DEVICE, MARKS

# NumPy tells of overflows in lanes that are masked afterwards.
pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_eager(dtype):
    compare("triton", dtype, DEVICE)
