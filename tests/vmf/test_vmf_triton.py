"""The von Mises–Fisher functions in Triton: on a GPU, or in the interpreter."""

import pytest
import torch

pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")

from tests.subprocesses import printed
from tests.vmf import fit_against_eager
from tests.vmf.vmf_against_eager import CASES, compare

COMPARE = """
import torch
from tests.vmf import fit_against_eager
from tests.vmf.vmf_against_eager import CASES, compare
for name, dtype in CASES:
    compare(name, dtype, torch.device("cpu"))
print("compared", len(CASES), fit_against_eager.compare("triton", quick=True))
"""


@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_on_the_gpu(function, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    compare(function, dtype, torch.device("cuda"))


def test_in_the_interpreter():
    if torch.cuda.is_available():
        pytest.skip("it runs on the GPU itself")
    assert printed(COMPARE, TRITON_INTERPRET="1") == f"compared {len(CASES)} 8"


def test_the_fit_on_the_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert fit_against_eager.compare("triton", "cuda") == 102
