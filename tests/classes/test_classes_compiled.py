"""The Triton kernels of the class log-sum-exp, compiled ahead of time."""

import pytest
import torch

from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.similarity_chunks import Chunk, Similarities
from robustdml_ops.ops.classes.backends import EagerClasses, TritonClasses, fused_forward
from robustdml_ops.ops.classes.problem import ClassProblem, ClassSums, ClassUpstream
from tests.ahead_of_time import ARCHITECTURES, check, products_by
from tests.nightly import nightly_but

TRITON, EAGER = TritonClasses(), EagerClasses()
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
C = 512


def problem(pooling, compute, B, of_classes, normalize=True, several=False):
    """With a scale and a bias of each class, as PRISM has them, or one scale, as losses have; or with all options."""
    return ClassProblem(
        labels=LabelSets(torch.zeros((B, 3) if several else B, dtype=torch.int64)),
        drop_above=torch.full((B,), 0.4, dtype=compute) if several else None,
        scale=torch.ones(C if of_classes else (), dtype=compute),
        bias=torch.zeros(C, dtype=compute) if of_classes else None,
        target_bias=0.0,
        exclude_target=True,
        centers=1 if pooling == "none" else 8,
        pooling=pooling,
        gamma=0.1,
        normalize=normalize,
    )


def chunk_of(given, compute, B, operand=F32, D=None):
    """Unit proxies, or ``D`` columns of proxies as they are; dL/dS rounded to the operand type where it is another."""
    S, inverse_norm = torch.zeros(C * given.centers, B, dtype=compute), torch.zeros(C * given.centers, dtype=compute)
    dS = torch.zeros(len(S), B, dtype=operand) if compute != operand and compute == F32 else None
    V, G = torch.zeros(2, len(S), D or 1, dtype=BF16)
    return Chunk(0, len(S), S, V, inverse_norm, False, inverse_norm if D else None, dS, G if D else None)


def forward(pooling, compute, B=1024, of_classes=True, D=None, several=False):
    given = problem(pooling, compute, B, of_classes, several=several)
    chunk = chunk_of(given, compute, B, D=D)
    return lambda: TRITON.class_lse(
        chunk, given, ClassSums(*torch.zeros(2, B, dtype=torch.float64), torch.zeros(B, dtype=compute))
    )


def backward(pooling, compute, B=1024, of_classes=True, operand=BF16, D=None, several=False):
    given = problem(pooling, compute, B, of_classes, several=several)
    chunk = chunk_of(given, compute, B, operand, D)
    upstream = ClassUpstream(*(torch.zeros(B, dtype=compute) for _ in range(3)))
    return lambda: TRITON.class_lse_backward(chunk, given, upstream)


def keeping(operand, B=1024, D=None):
    """The forward that also writes the terms."""
    given = problem("none", F32, B, of_classes=False)
    chunk = chunk_of(given, F32, B, operand, D)._replace(dS=torch.zeros(C, B, dtype=operand))
    return lambda: TRITON.class_lse(chunk, given, ClassSums(*torch.zeros(2, B, dtype=torch.float64), torch.zeros(B)))


def completing(operand, B=1024, D=512, proxies=F32, selected=None):
    """The terms' last step."""
    given, E = problem("none", F32, B, of_classes=False), torch.zeros(C, B, dtype=operand)
    X, P = torch.zeros(B, D, dtype=proxies), torch.zeros(C, D, dtype=proxies)
    settings = {"selected": selected, "kept": E}
    similarities = Similarities(X, P, F32, operand, EAGER, **settings)
    return lambda: TRITON.complete_terms(similarities, E, given, ClassUpstream(*torch.zeros(3, B)))


def fused(pooling, D, operand, proxies=F32, precision="high", normalize=True, B=1024, columns=False):
    given = problem(pooling, F32, B, of_classes=True, normalize=normalize)
    X, P = torch.zeros(B, D, dtype=operand), torch.zeros(C * given.centers, D, dtype=proxies)
    P = P.t().contiguous().t() if columns else P

    def launch():
        with products_by(precision):
            fused_forward(X, P, given, ClassSums(*torch.zeros(2, B, dtype=torch.float64), torch.zeros(B)))

    return launch


ORDINARY_CORES = {
    **{
        f"{sweep.__name__}, {pooling}, {compute}": sweep(pooling, compute)
        for sweep in (forward, backward)
        for pooling, compute in [("none", F32), ("max", F32), ("softmax", F32), ("softmax", F64)]
    },
    **{
        f"{sweep.__name__}, {pooling}, several labels, similar ones dropped": sweep(pooling, F32, several=True)
        for sweep in (forward, backward)
        for pooling in ("none", "softmax")
    },
    "forward, one scale": forward("none", F32, of_classes=False),
    "forward of an odd batch": forward("none", F32, B=99),
    "backward, one scale": backward("none", F32, of_classes=False),
    "backward, operands of float32": backward("none", F32, operand=F32),
    "backward of an odd batch": backward("none", F32, B=99),
    **{
        f"{sweep.__name__}, {pooling}, as they are": sweep(pooling, F32, D=512)
        for sweep in (forward, backward)
        for pooling in ("none", "max", "softmax")
    },
    "backward, as they are, odd sizes": backward("none", F32, B=99, D=99),
    "forward that keeps": keeping(BF16),
    "forward that keeps, as they are": keeping(BF16, D=512),
    "forward that keeps, fp32, odd batch": keeping(F32, B=99),
    "terms, as they are": completing(BF16, proxies=BF16),
    "terms, as they are, selected, odd sizes": completing(BF16, 99, 201, BF16, torch.arange(C)),
    "terms, fp32": completing(F32),
    "fused, fp32": fused("none", 128, F32, precision="highest"),
    "fused, softmax, fp32": fused("softmax", 128, F32, precision="highest"),
}
TENSOR_CORES = {
    "fused, tf32x3": fused("none", 128, F32, precision="tf32x3"),
    "fused, softmax, tf32x3": fused("softmax", 128, F32, precision="tf32x3"),
    "fused, bf16": fused("none", 128, BF16),
    "fused, bf16, not normalised": fused("none", 128, BF16, normalize=False),
    "fused, bf16, as they are": fused("none", 128, BF16, proxies=BF16),
    "fused, softmax, bf16, as they are": fused("softmax", 128, BF16, proxies=BF16),
    "fused, bf16, long rows": fused("none", 256, BF16),
    "fused, bf16, rows of odd length": fused("none", 99, BF16),
    "fused, softmax, bf16, long rows of odd length": fused("softmax", 201, BF16),
    "fused, bf16, by columns": fused("none", 128, BF16, columns=True),
    "fused, softmax, tf32, by columns": fused("softmax", 128, F32, columns=True),
    "fused, bf16, an odd batch": fused("none", 128, BF16, B=99),
    "fused, tf32": fused("none", 128, F32),
    "fused, max, bf16": fused("max", 128, BF16),
    "fused, softmax, bf16": fused("softmax", 128, BF16),
    "fused, softmax, bf16, long rows": fused("softmax", 256, BF16, proxies=BF16),
}

SHORT = (
    "forward, softmax, torch.float32",
    "backward, none, torch.float32",
    "backward, none, as they are",
    "forward that keeps, as they are",
    "terms, as they are",
    "fused, bf16",
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", nightly_but(SHORT, [*ORDINARY_CORES, *TENSOR_CORES]))
@pytest.mark.usefixtures("exact_products")
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    launch = {**ORDINARY_CORES, **TENSOR_CORES}[name]
    check(launch, architecture, tmp_path, tensor_cores={"fused_class_lse"} if name in TENSOR_CORES else set())
