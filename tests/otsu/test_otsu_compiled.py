"""The Triton kernel of Otsu's cut, compiled ahead of time."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from robustdml_ops.otsu.kernels import otsu
from robustdml_ops.otsu.triton import LONGEST, otsu_launch
from tests.ahead_of_time import check_elementwise


@pytest.mark.parametrize(
    ("architecture", "dtype", "n"), [(80, torch.float32, 256), (90, torch.float32, LONGEST), (100, torch.float64, 256)]
)
def test_compiles_without_spills(architecture, dtype, n, tmp_path):
    arguments = dict.fromkeys(("values", "threshold", "low_mean", "high_mean"), dtype)
    arguments |= {"index": "*i64", "excluded": "*i64", "found": "*i1", "n": "i32", "min_group": "i32"}
    check_elementwise(otsu, arguments, otsu_launch(n), architecture, tmp_path)
