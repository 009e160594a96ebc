"""The Triton kernels of the von Mises–Fisher distribution, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.ops.vmf.problem import FitProblem
from robustdml_ops.ops.vmf.triton import TritonVmf
from tests.ahead_of_time import ARCHITECTURES, check, check_elementwise
from tests.nightly import nightly_but

DTYPES = nightly_but([torch.float32], [torch.float32, torch.float64])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "function", nightly_but(["ratio_derivative"], ["log_0f1", "peak", "log_i", "ratio", "ratio_derivative"])
)
def test_compiles_without_spills(function, dtype, architecture, tmp_path):
    kappa = torch.ones(1000, dtype=torch.float64 if function == "log_i" else dtype)
    check_elementwise(lambda: TritonVmf().evaluate_vmf(function, 9.5, kappa), architecture, tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", nightly_but([128], [2, 128]))
def test_the_fit_compiles_without_spills(dim, dtype, architecture, tmp_path):
    sums, counts, classes = torch.zeros(1000, dim, dtype=dtype), torch.zeros(1000).long(), torch.zeros(512).long()
    problem = FitProblem(sums, counts, classes, dim, "newton", "u")
    check(lambda: TritonVmf().fit(problem), architecture, tmp_path)
