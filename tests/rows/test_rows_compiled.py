"""The Triton kernels of unit rows, compiled ahead of time."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from robustdml_ops.rows.kernels import normalize_rows, normalize_rows_backward
from robustdml_ops.rows.triton import rows_launch
from tests.ahead_of_time import ARCHITECTURES, Constant, check


def forward(D, source, operand, compute):
    arguments = {"P": source, "U": operand, "inverse_norm": compute, "row_stride": "i32", "column_stride": Constant(1)}
    return normalize_rows, {**arguments, "n": "i32", "D": "i32"}, lambda architecture: rows_launch(D)


def backward(D, operand, compute):
    arguments = {"G": compute, "U": operand, "inverse_norm": compute, "n": "i32", "D": "i32"}
    return normalize_rows_backward, arguments, lambda architecture: rows_launch(D)


KERNELS = {
    "normalize": forward(128, torch.float32, torch.bfloat16, torch.float32),
    "normalize, long rows in float64": forward(2048, torch.float64, torch.float64, torch.float64),
    "normalize backward": backward(512, torch.bfloat16, torch.float32),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    check(*KERNELS[name], architecture, tmp_path, tensor_cores=False)
