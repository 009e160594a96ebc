"""The Triton kernel of cosines, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.ops.similarity.triton import TritonSimilarity
from tests.ahead_of_time import ARCHITECTURES, check
from tests.nightly import nightly_but


def cosines(D, operand, result, input_precision="tf32", B=256, C=512, columns=False, apart=False):
    X, P, S = torch.zeros(B, D, dtype=operand), torch.zeros(C, D, dtype=operand), torch.zeros(B, C, dtype=result)
    P = P.t().contiguous().t() if columns else P
    X, P = (torch.zeros(len(rows), 128, dtype=operand)[:, :D] if apart else rows for rows in (X, P))
    return lambda: TritonSimilarity().fused(X, P, S, input_precision)


ORDINARY_CORES = {"fp32": cosines(128, torch.float32, torch.float32, "ieee")}
TENSOR_CORES = {
    "bf16": cosines(128, torch.bfloat16, torch.bfloat16),
    "bf16, odd sizes": cosines(128, torch.bfloat16, torch.bfloat16, B=99, C=11_318),
    "bf16, rows of odd length": cosines(99, torch.bfloat16, torch.float32),
    "bf16, rows of odd length that lie apart": cosines(99, torch.bfloat16, torch.float32, apart=True),
    "tf32, rows of odd length": cosines(99, torch.float32, torch.float32, B=99, C=1001),
    "bf16, by columns": cosines(128, torch.bfloat16, torch.bfloat16, columns=True),
    "bf16, short rows": cosines(24, torch.bfloat16, torch.float32),
    "fp16, long rows": cosines(768, torch.float16, torch.float16),
    "tf32": cosines(512, torch.float32, torch.float32),
    "tf32x3": cosines(512, torch.float32, torch.float32, "tf32x3"),
    "tf32x3, rows of odd length": cosines(99, torch.float32, torch.float32, "tf32x3", B=99, C=1001),
}

SHORT = ("bf16",)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(SHORT, [*ORDINARY_CORES, *TENSOR_CORES]))
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    launch = {**ORDINARY_CORES, **TENSOR_CORES}[name]
    check(launch, architecture, tmp_path, tensor_cores={"similarity"} if name in TENSOR_CORES else set())
