"""The Triton kernel of cosines, compiled ahead of time."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton.language as tl

from robustdml_ops.similarity.kernels import similarity
from robustdml_ops.similarity.triton import similarity_launch
from tests.ahead_of_time import ARCHITECTURES, Constant, check


def cosines(D, operand, result, input_precision="tf32"):
    arguments = {"X": operand, "P": operand, "S": result, "D": Constant(D), "B": "i32", "C": "i32"}
    arguments |= {"X_row_stride": "i32", "X_column_stride": Constant(1), "S_stride": "i32"}
    arguments |= {"P_row_stride": "i32", "P_column_stride": Constant(1)}
    arguments |= {"OPERAND": Constant(getattr(tl, str(operand).removeprefix("torch.")))}
    return similarity, arguments, lambda architecture: similarity_launch(D, operand, input_precision)


ORDINARY_CORES = {"fp32": cosines(128, torch.float32, torch.float32, "ieee")}
TENSOR_CORES = {
    "bf16": cosines(128, torch.bfloat16, torch.bfloat16),
    "bf16, short rows": cosines(24, torch.bfloat16, torch.float32),
    "fp16, long rows": cosines(768, torch.float16, torch.float16),
    "tf32": cosines(512, torch.float32, torch.float32),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [*ORDINARY_CORES, *TENSOR_CORES])
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    kernel = {**ORDINARY_CORES, **TENSOR_CORES}[name]
    check(*kernel, architecture, tmp_path, tensor_cores=name in TENSOR_CORES)
