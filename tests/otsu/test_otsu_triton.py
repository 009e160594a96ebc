"""Triton's kernel of Otsu's cut against the eager one."""

import pytest

from tests.otsu.test_otsu_native import DTYPES, compare
from tests.triton_here import DEVICE, MARKS

# NumPy tells of overflows in lanes that are masked afterwards.
pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
LENGTHS = (1, 4, 17) if DEVICE.type == "cpu" else (1, 2, 5, 64, 257, 1024, 4096, 8192, 20_000)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_against_eager(dtype):
    compare("triton", dtype, DEVICE, LENGTHS)
