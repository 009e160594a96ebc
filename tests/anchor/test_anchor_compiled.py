"""The Triton kernels of the anchor log-sum-exp, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.anchor.problem import AnchorChunk, AnchorProblem, ConfidenceSets
from robustdml_ops.anchor.triton import TritonAnchor
from robustdml_ops.label_sets import LabelSets
from tests.ahead_of_time import ARCHITECTURES, check

TRITON = TritonAnchor()
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
C = 64


def sets_of(kind, B, compute):
    """Confidences as users have them, (B, C) by rows; logits as the sweep makes them, (c, B) by rows."""
    if kind == "labels":
        return LabelSets(torch.zeros(B, dtype=torch.int64))
    if kind == "confidences":
        return ConfidenceSets(9.0, 0.5, torch.zeros(B, C, dtype=compute))
    factors = torch.zeros(B, 4, dtype=compute), torch.zeros(C, 4, dtype=compute), torch.zeros(C, dtype=compute)
    return ConfidenceSets(9.0, 0.5, None, *factors)


def problem(kind, B, compute, anchor_bias=True):
    bias = torch.zeros(B, dtype=compute)
    anchor = torch.zeros(C, dtype=compute) if anchor_bias else None
    return AnchorProblem(32.0, bias, bias, anchor, sets_of(kind, B, compute))


def epilogue(kind, compute, B=1024, whole=True, operand=BF16):
    """With gradients; the whole of it has an anchor bias, gradients of the biases, and an upstream for each anchor."""
    given = problem(kind, B, compute, anchor_bias=whole)
    upstream = torch.ones(C if whole else (), dtype=compute)
    lse, dbias = torch.zeros(2, C, dtype=compute), torch.zeros(2, B, dtype=compute)
    S = torch.zeros(C, B, dtype=compute)
    dS = torch.zeros(C, B, dtype=operand) if compute != operand and compute == F32 else None
    chunk = AnchorChunk(S, 0, upstream, upstream, *lse, *(dbias if whole else (None, None)), dS=dS)
    return lambda: TRITON.anchor_lse(chunk, given)


def fused(kind, D, operand, proxies=F32, precision="high", B=1024, columns=False):
    given, X, P = problem(kind, B, F32), torch.zeros(B, D, dtype=operand), torch.zeros(C, D, dtype=proxies)
    P = P.t().contiguous().t() if columns else P

    def launch():
        torch.set_float32_matmul_precision(precision)
        assert TRITON.fused_forward(X, P, given) is not None

    return launch


ORDINARY_CORES = {
    "epilogue, labels": epilogue("labels", F32, whole=False),
    "epilogue, labels, operands of float32": epilogue("labels", F32, whole=False, operand=F32),
    "epilogue, labels, an odd batch": epilogue("labels", F32, B=99, whole=False),
    "epilogue, labels, the whole": epilogue("labels", F32),
    "epilogue, confidences": epilogue("confidences", F32),
    "epilogue, logits": epilogue("logits", F32),
    "epilogue, logits in float64": epilogue("logits", F64),
    "fused, labels, fp32": fused("labels", 128, F32, precision="highest"),
}
TENSOR_CORES = {
    "fused, labels, bf16": fused("labels", 128, BF16),
    "fused, labels, bf16, an odd batch": fused("labels", 128, BF16, B=99),
    "fused, labels, bf16, rows of odd length": fused("labels", 99, BF16),
    "fused, labels, tf32, long rows of odd length": fused("labels", 515, F32),
    "fused, labels, bf16, by columns": fused("labels", 128, BF16, columns=True),
    "fused, confidences, tf32, by columns": fused("confidences", 512, F32, columns=True),
    "fused, labels, bf16, long rows": fused("labels", 512, BF16),
    "fused, confidences, bf16": fused("confidences", 128, BF16, proxies=BF16),
    "fused, confidences, fp16, long rows": fused("confidences", 512, F16),
    "fused, labels, tf32": fused("labels", 128, F32),
    "fused, confidences, tf32, long rows": fused("confidences", 512, F32),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [*ORDINARY_CORES, *TENSOR_CORES])
@pytest.mark.usefixtures("exact_products")
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    launch = {**ORDINARY_CORES, **TENSOR_CORES}[name]
    check(launch, architecture, tmp_path, tensor_cores={"fused_anchor_lse"} if name in TENSOR_CORES else set())
