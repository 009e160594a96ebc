"""The Triton kernel of Otsu's cut, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.ops.otsu.triton import LONGEST, TritonOtsu
from tests.ahead_of_time import check_elementwise


@pytest.mark.parametrize(
    ("architecture", "dtype", "n"), [(80, torch.float32, 256), (90, torch.float32, LONGEST), (100, torch.float64, 250)]
)
def test_compiles_without_spills(architecture, dtype, n, tmp_path):
    values = torch.zeros(n, dtype=dtype)
    check_elementwise(lambda: TritonOtsu().otsu_cut(values, 1), architecture, tmp_path)
