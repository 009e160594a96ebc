"""The Triton kernels of rows, cosines, and what goes element by element or row by row, compiled ahead of time."""

from functools import partial

import pytest
import torch

from robustdml_ops.engine.rows.backends import TritonRows
from robustdml_ops.ops.lambert_w import backends as lambert_w
from robustdml_ops.ops.otsu.backends import TRITON_LONGEST, TritonOtsu
from robustdml_ops.ops.similarity.backends import TritonSimilarity
from robustdml_ops.ops.vmf.backends import TritonVmf
from robustdml_ops.ops.vmf.problem import FitProblem
from tests.ahead_of_time import ARCHITECTURES, check, check_elementwise
from tests.nightly import nightly_but

F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
ROWS, LAMBERT_W = TritonRows(), lambert_w.BACKENDS["triton"]


def normalize(D, source, operand, compute, columns=False):
    P = torch.zeros(D, 64, dtype=source).t() if columns else torch.zeros(64, D, dtype=source)
    return lambda: ROWS.normalize_rows(P, torch.zeros(64, D, dtype=operand), torch.zeros(64, dtype=compute))


def norms(D, source):
    return lambda: ROWS.normalize_rows(torch.zeros(64, D, dtype=source), None, torch.zeros(64))


def normalize_backward(D, operand, compute):
    G, U = torch.zeros(64, D, dtype=compute), torch.zeros(64, D, dtype=operand)
    return lambda: ROWS.normalize_rows_backward(G, U, torch.zeros(64, dtype=compute))


def radial(D, columns=False):
    G, V = (torch.zeros(D, 64, dtype=BF16).t() if columns else torch.zeros(64, D, dtype=BF16) for _ in range(2))
    return lambda: ROWS.finish(G, V, torch.zeros(64), unit=False)


def scale(n, dtype, compute=F32):
    return lambda: ROWS.scale(torch.zeros(n, dtype=dtype), torch.ones((), dtype=compute))


def cosines(D, operand, result, input_precision="tf32", B=256, C=512, columns=False, apart=False):
    X, P, S = torch.zeros(B, D, dtype=operand), torch.zeros(C, D, dtype=operand), torch.zeros(B, C, dtype=result)
    P = P.t().contiguous().t() if columns else P
    X, P = (torch.zeros(len(rows), 128, dtype=operand)[:, :D] if apart else rows for rows in (X, P))
    return lambda: TritonSimilarity().fused(X, P, S, input_precision)


def fit(dim, dtype):
    sums, counts, classes = torch.zeros(1000, dim, dtype=dtype), torch.zeros(1000).long(), torch.zeros(512).long()
    return lambda: TritonVmf().fit(FitProblem(sums, counts, classes, dim, "newton", "u"))


def evaluate(function, dtype):
    return lambda: TritonVmf().evaluate_vmf(
        function, 9.5, torch.ones(1000, dtype=F64 if function == "log_i" else dtype)
    )


def otsu(n):
    return lambda: TritonOtsu().otsu_cut(torch.zeros(n, dtype=F64 if n == 250 else F32), 1)


ORDINARY_CORES = {
    "normalize": normalize(128, F32, BF16, F32),
    "normalize, rows of odd length": normalize(99, F32, F32, F32),
    "normalize, by columns": normalize(128, F32, BF16, F32, columns=True),
    "normalize, long rows in float64": normalize(2048, F64, F64, F64),
    "norms alone": norms(512, BF16),
    "normalize backward": normalize_backward(512, BF16, F32),
    "radial part": radial(512),
    "radial part, rows of odd length by columns": radial(99, columns=True),
    "scale": scale(2**20, F32),
    "scale, bfloat16 of odd number": scale(99_999, BF16),
    "scale, float64": scale(2**20, F64, F64),
    "cosines, fp32": cosines(128, F32, F32, "ieee"),
    **{f"vmf fit, {dim}, {dtype}": fit(dim, dtype) for dim in (128, 2) for dtype in (F32, F64)},
}
TENSOR_CORES = {
    "cosines, bf16": cosines(128, BF16, BF16),
    "cosines, bf16, odd sizes": cosines(128, BF16, BF16, B=99, C=11_318),
    "cosines, bf16, rows of odd length": cosines(99, BF16, F32),
    "cosines, bf16, rows of odd length that lie apart": cosines(99, BF16, F32, apart=True),
    "cosines, tf32, rows of odd length": cosines(99, F32, F32, B=99, C=1001),
    "cosines, bf16, by columns": cosines(128, BF16, BF16, columns=True),
    "cosines, bf16, short rows": cosines(24, BF16, F32),
    "cosines, fp16, long rows": cosines(768, F16, F16),
    "cosines, tf32": cosines(512, F32, F32),
    "cosines, tf32x3": cosines(512, F32, F32, "tf32x3"),
    "cosines, tf32x3, rows of odd length": cosines(99, F32, F32, "tf32x3", B=99, C=1001),
}
ELEMENTWISE = {f"otsu, {n}": otsu(n) for n in (250, 256, TRITON_LONGEST)}
for _dtype in (F32, F64):
    for _function in ("log_0f1", "peak", "log_i", "ratio", "ratio_derivative"):
        ELEMENTWISE[f"vmf {_function}, {_dtype}"] = evaluate(_function, _dtype)
    _x = torch.ones(1000, dtype=_dtype)
    ELEMENTWISE |= {
        f"lambert_w, {_dtype}": partial(LAMBERT_W.lambert_w, _x),
        f"confidence, one threshold, {_dtype}": partial(LAMBERT_W.confidence, _x, _x[:1], 1.0),
        f"confidence, a threshold each, {_dtype}": partial(LAMBERT_W.confidence, _x, _x, 1.0),
        f"superloss, {_dtype}": partial(LAMBERT_W.superloss, _x, _x[:1], 1.0),
    }
SHORT = ("normalize", "normalize backward", "scale", "cosines, bf16", f"vmf fit, 128, {F32}", "otsu, 250")
SHORT += (f"vmf ratio_derivative, {F32}", f"superloss, {F32}")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(SHORT, ORDINARY_CORES | TENSOR_CORES | ELEMENTWISE))
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    if name in ELEMENTWISE:
        check_elementwise(ELEMENTWISE[name], architecture, tmp_path)
        return
    tensor_cores = {"similarity"} if name in TENSOR_CORES else set()
    check((ORDINARY_CORES | TENSOR_CORES)[name], architecture, tmp_path, tensor_cores=tensor_cores)
