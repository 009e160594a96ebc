"""The Triton kernel of the von Mises–Fisher functions, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.vmf.triton import TritonVmf
from tests.ahead_of_time import ARCHITECTURES, check_elementwise
from tests.vmf.vmf_against_eager import CASES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_compiles_without_spills(function, dtype, architecture, tmp_path):
    kappa = torch.ones(1000, dtype=dtype)
    check_elementwise(lambda: TritonVmf().evaluate_vmf(function, 9.5, kappa), architecture, tmp_path)
