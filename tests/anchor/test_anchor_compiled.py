"""The Triton kernels of the anchor log-sum-exp, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.backends.triton_device import tile_of
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.anchor.backends import TritonAnchor, epilogue_launch, fused_forward
from robustdml_ops.ops.anchor.problem import AnchorProblem, AnchorSums, ConfidenceSets
from tests.ahead_of_time import ARCHITECTURES, check, compiling, products_by
from tests.nightly import nightly_but
from tests.sass import loops

TRITON = TritonAnchor()
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
C = 64


def sets_of(kind, B, compute):
    """Confidences as users have them, (B, C) by rows; logits as the sweep makes them, (c, B) by rows."""
    if kind == "labels":
        return LabelSets(torch.zeros(B, dtype=torch.int64))
    if kind == "several labels":
        return LabelSets(torch.zeros(B, 3, dtype=torch.int64), weights=torch.zeros(B, 3, dtype=compute))
    if kind == "confidences":
        return ConfidenceSets(9.0, 0.5, torch.zeros(B, C, dtype=compute))
    factors = torch.zeros(B, 4, dtype=compute), torch.zeros(C, 4, dtype=compute), torch.zeros(C, dtype=compute)
    return ConfidenceSets(9.0, 0.5, None, *factors)


def problem(kind, B, compute, whole=True, drops=False):
    """With one bias for both sides, as Proxy-Anchor has; the whole of it has three."""
    bias = torch.zeros(B, dtype=compute)
    other, anchor = (torch.zeros(B, dtype=compute), torch.zeros(C, dtype=compute)) if whole else (bias, None)
    return AnchorProblem(32.0, bias, other, anchor, sets_of(kind, B, compute), bias if drops else None)


def epilogue(kind, compute, B=1024, whole=True, operand=BF16, D=None):
    """With gradients; the whole of it has three biases, their gradients, an upstream for each anchor, and a limit.

    ``D``: of proxies as they are, so many columns.
    """
    given = problem(kind, B, compute, whole, drops=whole)
    upstream = torch.ones(C if whole else (), dtype=compute)
    lse, dbias = torch.zeros(2, C, dtype=compute), torch.zeros(2, B, dtype=compute)
    S = torch.zeros(C, B, dtype=compute)
    dS = torch.zeros(C, B, dtype=operand) if compute != operand and compute == F32 else None
    V, G = torch.zeros(2, C, D or 1, dtype=BF16)
    chunk = Chunk(0, C, S, V, S, short=False, scale=S if D else None, dS=dS, G=G if D else None)
    sums = AnchorSums((upstream, upstream), *lse, *(dbias if whole else (None, None)))
    return lambda: TRITON.anchor_lse(chunk, sums, given)


def fused(kind, D, operand, proxies=F32, precision="high", B=1024, columns=False, whole=False, drops=False):
    given, X, P = (
        problem(kind, B, F32, whole, drops),
        torch.zeros(B, D, dtype=operand),
        torch.zeros(C, D, dtype=proxies),
    )
    P = P.t().contiguous().t() if columns else P

    def launch():
        with products_by(precision):
            fused_forward(X, P, given)

    return launch


ORDINARY_CORES = {
    "epilogue, labels": epilogue("labels", F32, whole=False),
    "epilogue, labels, operands of float32": epilogue("labels", F32, whole=False, operand=F32),
    "epilogue, labels, an odd batch": epilogue("labels", F32, B=99, whole=False),
    "epilogue, labels, the whole": epilogue("labels", F32),
    "epilogue, labels, as they are": epilogue("labels", F32, whole=False, D=512),
    "epilogue, labels, as they are, odd sizes": epilogue("labels", F32, B=99, whole=False, D=99),
    "epilogue, confidences, as they are, the whole": epilogue("confidences", F32, D=512),
    "epilogue, confidences": epilogue("confidences", F32),
    "epilogue, logits": epilogue("logits", F32),
    "epilogue, several labels": epilogue("several labels", F32, whole=False),
    "epilogue, logits in float64": epilogue("logits", F64),
    "fused, labels, fp32": fused("labels", 128, F32, precision="highest"),
}
TENSOR_CORES = {
    "fused, labels, tf32x3": fused("labels", 128, F32, precision="tf32x3"),
    "fused, labels, tf32x3, long rows": fused("labels", 512, F32, precision="tf32x3"),
    "fused, confidences, tf32x3, long rows": fused("confidences", 512, F32, precision="tf32x3"),
    "fused, labels, tf32x3, three biases": fused("labels", 128, F32, whole=True, precision="tf32x3"),
    "fused, labels, bf16": fused("labels", 128, BF16),
    "fused, labels, bf16, dropped": fused("labels", 128, BF16, drops=True),
    "fused, labels, bf16, three biases": fused("labels", 128, BF16, whole=True),
    "fused, labels, bf16, long rows, three biases": fused("labels", 512, BF16, whole=True),
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

SHORT = ("epilogue, labels", "epilogue, labels, as they are", "epilogue, confidences", "fused, labels, bf16")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(SHORT, [*ORDINARY_CORES, *TENSOR_CORES]))
@pytest.mark.usefixtures("exact_products")
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    tensor_cores = {"fused_anchor_lse"} if name in TENSOR_CORES else set()
    check((ORDINARY_CORES | TENSOR_CORES)[name], architecture, tmp_path, tensor_cores=tensor_cores)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("epilogue, labels", 27),
        pytest.param("epilogue, labels, operands of float32", 30, marks=pytest.mark.nightly),
    ],
)
def test_instructions_an_element(name, most, architecture, tmp_path):
    """The sums and the gradient; the loops between them are for rows whose sums overflow.

    The epilogue is bound by them: at 68 an element it would take longer than the products at C = 10⁶.
    """
    with compiling(architecture) as compiled:
        ORDINARY_CORES[name]()
    ((_, kernel),) = compiled
    sums, *between, gradient = loops(kernel, tmp_path)
    assert len(between) == 2
    assert not any("SHFL" in instruction for instruction in sums)
    assert any("STG" in instruction for instruction in gradient)
    parameters = epilogue_launch(1024, F32, True, False, tile_of("anchor_lse", torch.empty(0)))
    a_thread = parameters["BLOCK_C"] * parameters["BLOCK_B"] / (32 * parameters["num_warps"])
    assert 10 < (len(sums) + len(gradient)) / a_thread <= most
