"""The Triton kernels of unit rows, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.engine.rows.triton import TritonRows
from tests.ahead_of_time import ARCHITECTURES, check
from tests.nightly import nightly_but

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16


def forward(D, source, operand, compute, columns=False):
    P = torch.zeros(D, 64, dtype=source).t() if columns else torch.zeros(64, D, dtype=source)
    return lambda: TritonRows().normalize_rows(P, torch.zeros(64, D, dtype=operand), torch.zeros(64, dtype=compute))


def backward(D, operand, compute):
    G, U = torch.zeros(64, D, dtype=compute), torch.zeros(64, D, dtype=operand)
    return lambda: TritonRows().normalize_rows_backward(G, U, torch.zeros(64, dtype=compute))


def scaling(n, dtype, compute=F32):
    return lambda: TritonRows().scale(torch.zeros(n, dtype=dtype), torch.ones((), dtype=compute))


LAUNCHES = {
    "normalize": forward(128, F32, BF16, F32),
    "normalize, rows of odd length": forward(99, F32, F32, F32),
    "normalize, by columns": forward(128, F32, BF16, F32, columns=True),
    "normalize, long rows in float64": forward(2048, F64, F64, F64),
    "normalize backward": backward(512, BF16, F32),
    "scale": scaling(2**20, F32),
    "scale, bfloat16 of odd number": scaling(99_999, BF16),
    "scale, float64": scaling(2**20, F64, F64),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(["normalize", "normalize backward", "scale"], LAUNCHES))
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    check(LAUNCHES[name], architecture, tmp_path)
