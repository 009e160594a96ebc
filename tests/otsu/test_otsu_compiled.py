"""The Triton kernel of Otsu's cut, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.ops.otsu.triton import LONGEST, TritonOtsu
from tests.ahead_of_time import ARCHITECTURES, check_elementwise
from tests.nightly import nightly_but


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("n", nightly_but([250], [250, 256, LONGEST]))
def test_compiles_without_spills(architecture, n, tmp_path):
    values = torch.zeros(n, dtype=torch.float64 if n == 250 else torch.float32)
    check_elementwise(lambda: TritonOtsu().otsu_cut(values, 1), architecture, tmp_path)
