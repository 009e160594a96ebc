"""Otsu's cut in kernels: on a GPU, or, Triton's, in the interpreter."""

import pytest
import torch

pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")

from robustdml_ops.backends import choice as backends
from tests.otsu.otsu_against_eager import DTYPES, compare
from tests.subprocesses import printed

COMPARE = """
import torch
from tests.otsu.otsu_against_eager import DTYPES, compare
for dtype in DTYPES:
    compare("triton", dtype, torch.device("cpu"), (1, 4, 17, 40))
print("compared", len(DTYPES))
"""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["triton", "native"])
def test_on_the_gpu(backend, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    reason = backends.UNAVAILABLE[backend](device, dtype)
    if reason:
        pytest.skip(reason)
    compare(backend, dtype, device, (1, 2, 5, 64, 257, 1024, 4096, 8192, 20_000))


def test_in_the_interpreter():
    if torch.cuda.is_available():
        pytest.skip("it runs on the GPU itself")
    assert printed(COMPARE, TRITON_INTERPRET="1") == f"compared {len(DTYPES)}"
