"""The Triton kernel of the von Mises–Fisher functions, compiled ahead of time."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from robustdml_ops.vmf.kernels import vmf
from robustdml_ops.vmf.triton import BLOCK, constants
from tests.ahead_of_time import ARCHITECTURES, check_elementwise
from tests.vmf.vmf_against_eager import CASES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_compiles_without_spills(function, dtype, architecture, tmp_path):
    arguments = {"kappa": dtype, "out": dtype, "count": "i32"}
    check_elementwise(vmf, arguments, constants(function, 9.5, dtype) | {"BLOCK": BLOCK}, architecture, tmp_path)
