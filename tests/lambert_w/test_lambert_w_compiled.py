"""The Triton kernels of Lambert's W and its confidences, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.ops.lambert_w.triton import TritonLambertW
from tests.ahead_of_time import ARCHITECTURES, check_elementwise
from tests.nightly import nightly_but

TRITON = TritonLambertW()
CALLS = {
    "lambert_w": TRITON.lambert_w,
    "confidence, one threshold": lambda x: TRITON.confidence(x, x[:1], 1.0),
    "confidence, a threshold each": lambda x: TRITON.confidence(x, x, 1.0),
    "superloss": lambda x: TRITON.superloss(x, x[:1], 1.0),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", nightly_but([torch.float32], [torch.float32, torch.float64]), ids=str)
@pytest.mark.parametrize("name", nightly_but(["superloss"], CALLS))
def test_compiles_without_spills(name, dtype, architecture, tmp_path):
    check_elementwise(lambda: CALLS[name](torch.ones(1000, dtype=dtype)), architecture, tmp_path)
