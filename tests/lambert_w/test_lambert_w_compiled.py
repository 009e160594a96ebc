"""The Triton kernels of Lambert's W and its confidences, compiled ahead of time."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from robustdml_ops.lambert_w import kernels
from robustdml_ops.lambert_w.triton import BLOCK
from tests.ahead_of_time import ARCHITECTURES, check_elementwise


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["lambert_w", "confidence", "superloss"])
def test_compiles_without_spills(name, dtype, architecture, tmp_path):
    kernel = getattr(kernels, name)
    arguments = dict.fromkeys(kernel.arg_names[:-1], dtype) | {"count": "i32", "stride": "i32"}
    check_elementwise(kernel, arguments, {"BLOCK": BLOCK, "enable_fp_fusion": True}, architecture, tmp_path)
