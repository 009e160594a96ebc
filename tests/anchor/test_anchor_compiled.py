"""The Triton kernels of the anchor log-sum-exp, compiled ahead of time."""

import dataclasses
from unittest import mock

import pytest
import torch

from robustdml_ops.backends import cards
from robustdml_ops.backends.triton_device import tile_of
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.ops.anchor.fused import fused_forward, step_launch
from robustdml_ops.ops.anchor.problem import AnchorChunk, AnchorProblem, ConfidenceSets, Wanted
from robustdml_ops.ops.anchor.sweep import anchor_sweep
from robustdml_ops.ops.anchor.triton import TritonAnchor, epilogue_launch
from tests.ahead_of_time import ARCHITECTURES, OLDER_TRITON, check, check_resources, compiling, products_by
from tests.nightly import nightly_but
from tests.sass import loops

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


def problem(kind, B, compute, whole=True):
    """With one bias for both sides, as Proxy-Anchor has; the whole of it has three."""
    bias = torch.zeros(B, dtype=compute)
    other, anchor = (torch.zeros(B, dtype=compute), torch.zeros(C, dtype=compute)) if whole else (bias, None)
    return AnchorProblem(32.0, bias, other, anchor, sets_of(kind, B, compute))


def epilogue(kind, compute, B=1024, whole=True, operand=BF16):
    """With gradients; the whole of it has three biases, their gradients, and an upstream for each anchor."""
    given = problem(kind, B, compute, whole)
    upstream = torch.ones(C if whole else (), dtype=compute)
    lse, dbias = torch.zeros(2, C, dtype=compute), torch.zeros(2, B, dtype=compute)
    S = torch.zeros(C, B, dtype=compute)
    dS = torch.zeros(C, B, dtype=operand) if compute != operand and compute == F32 else None
    chunk = AnchorChunk(S, 0, (upstream, upstream), *lse, *(dbias if whole else (None, None)), dS=dS)
    return lambda: TRITON.anchor_lse(chunk, given)


def fused(kind, D, operand, proxies=F32, precision="high", B=1024, columns=False, whole=False):
    given, X, P = problem(kind, B, F32, whole), torch.zeros(B, D, dtype=operand), torch.zeros(C, D, dtype=proxies)
    P = P.t().contiguous().t() if columns else P

    def launch():
        with products_by(precision):
            fused_forward(X, P, given)

    return launch


def step(D, operand, proxies=BF16, B=256, columns=False, whole=False):
    """A small step, its two launches for the rows' lengths beside it; the whole of it has three biases."""
    given = problem("labels", B, F32, whole)
    X, P = torch.zeros(B, D, dtype=proxies), torch.zeros(C, D, dtype=proxies)
    P = P.t().contiguous().t() if columns else P
    upstream = torch.ones(C if whole else ())

    def launch():
        fused = {name: dataclasses.replace(row, small_step="fused") for name, row in cards.CARDS.items()}
        with products_by("high"), mock.patch.dict(cards.CARDS, fused):
            anchor_sweep(X, P, given, (upstream, upstream), TRITON, operand, Wanted(embeddings=True, proxies=True))

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
    "fused, labels, tf32x3": fused("labels", 128, F32, precision="tf32x3"),
    "fused, labels, tf32x3, long rows": fused("labels", 512, F32, precision="tf32x3"),
    "fused, confidences, tf32x3, long rows": fused("confidences", 512, F32, precision="tf32x3"),
    "fused, labels, tf32x3, three biases": fused("labels", 128, F32, whole=True, precision="tf32x3"),
    "fused, labels, bf16": fused("labels", 128, BF16),
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
    "step, bf16": step(128, BF16),
    "step, bf16, three biases, an odd batch": step(128, BF16, F32, B=99, whole=True),
    "step, bf16, rows of odd length": step(99, BF16, B=99, whole=True),
    "step, bf16, by columns": step(128, BF16, F32, columns=True, whole=True),
    "step, tf32": step(128, F32, F32, whole=True),
}

SHORT = ("epilogue, labels", "epilogue, confidences", "fused, labels, bf16", "step, bf16")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(SHORT, [*ORDINARY_CORES, *TENSOR_CORES]))
@pytest.mark.usefixtures("exact_products")
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    tensor_cores = {"fused_anchor_lse", "anchor_step"} if name in TENSOR_CORES else set()
    check((ORDINARY_CORES | TENSOR_CORES)[name], architecture, tmp_path, tensor_cores=tensor_cores)


@pytest.mark.nightly
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.usefixtures("exact_products")
def test_step_by_tf32_of_rows_of_odd_length(architecture, tmp_path):
    """Tiles of 32 rows: less than the newer tensor cores take, so these multiply by the older instructions."""
    with compiling(architecture) as compiled:
        step(99, F32, F32, B=99, whole=True)()
    (kernel,) = (kernel for name, kernel in compiled if name == "anchor_step")
    check_resources(kernel, tmp_path)
    assert "mma.sync" in kernel.asm["ptx"]


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


@pytest.mark.parametrize(("architecture", "most"), [pytest.param(80, 97, marks=pytest.mark.nightly), (90, 88)])
@pytest.mark.usefixtures("exact_products")
def test_instructions_an_element_of_a_small_step(architecture, most, tmp_path):
    """The sums; and the gradients with the cosines made again, products included."""
    with compiling(architecture) as compiled:
        TENSOR_CORES["step, bf16"]()
        parameters = step_launch(256, 128, BF16, True, tile_of("anchor_step", torch.empty(0)))
    (kernel,) = (kernel for name, kernel in compiled if name == "anchor_step")
    sums, gradients = loops(kernel, tmp_path)
    a_thread = parameters["BLOCK_C"] * parameters["BLOCK_B"] / (32 * parameters["num_warps"])
    most += 6 if OLDER_TRITON else 0
    assert 50 < (len(sums) + len(gradients)) / a_thread <= most
