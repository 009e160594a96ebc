"""The Triton kernels of the class log-sum-exp, compiled ahead of time."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from robustdml_ops.classes.fused_kernel import fused_class_lse
from robustdml_ops.classes.kernels import add_partials, class_lse, class_lse_backward
from robustdml_ops.classes.triton import epilogue_launch, fused_launch, partials_launch
from tests.ahead_of_time import ARCHITECTURES, Constant, check


def class_arguments(pooling, compute, vectors):
    arguments = dict.fromkeys(("scale", "bias", *vectors), compute)
    arguments |= dict.fromkeys(("H", "B", "scale_stride"), "i32")
    return arguments | {"labels": "*i64", "gamma": "fp64", "POOLING": Constant(pooling)}


def epilogue(kernel, pooling, compute, B=1024):
    vectors = ("S", "target", "partials") if kernel is class_lse else ("S", "lse", "dlse", "dlogit")
    arguments = class_arguments(pooling, compute, vectors) | dict.fromkeys(("c", "first", "per_part"), "i32")
    return kernel, arguments, lambda architecture: epilogue_launch(B, compute)


def sums_of_parts(parts):
    arguments = {"partials": torch.float32, "shift": torch.float64, "total": torch.float64}
    return add_partials, {**arguments, "parts": "i32", "B": "i32"}, lambda architecture: partials_launch(parts)


def fused(pooling, D, operand, proxies=torch.float32, input_precision="tf32", normalize=True, B=1024):
    arguments = class_arguments(pooling, torch.float32, ("target", "partials"))
    arguments |= {"X": operand, "P": proxies, "D": Constant(D), "NORMALIZE": Constant(normalize)}
    arguments |= {"C": "i32", "per_part": "i32", "row_stride": "i32", "column_stride": Constant(1)}
    parameters = fused_launch(B, D, operand, pooling != "none", input_precision)
    return fused_class_lse, arguments, lambda architecture: parameters


ORDINARY_CORES = {
    "sums of parts": sums_of_parts(512),
    **{
        f"{kernel.__name__}, {pooling}, {compute}": epilogue(kernel, pooling, compute)
        for kernel in (class_lse, class_lse_backward)
        for pooling, compute in [
            ("none", torch.float32),
            ("max", torch.float32),
            ("softmax", torch.float32),
            ("softmax", torch.float64),
        ]
    },
    "fused, fp32": fused("none", 128, torch.float32, input_precision="ieee"),
    "fused, softmax, fp32": fused("softmax", 128, torch.float32, input_precision="ieee"),
}
TENSOR_CORES = {
    "fused, bf16": fused("none", 128, torch.bfloat16),
    "fused, bf16, as they are": fused("none", 128, torch.bfloat16, normalize=False),
    "fused, bf16, long rows": fused("none", 512, torch.bfloat16, proxies=torch.bfloat16),
    "fused, tf32": fused("none", 128, torch.float32),
    "fused, max, bf16": fused("max", 128, torch.bfloat16),
    "fused, softmax, bf16": fused("softmax", 128, torch.bfloat16),
    "fused, softmax, tf32, long rows": fused("softmax", 512, torch.float32),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [*ORDINARY_CORES, *TENSOR_CORES])
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    kernel = {**ORDINARY_CORES, **TENSOR_CORES}[name]
    check(*kernel, architecture, tmp_path, tensor_cores=name in TENSOR_CORES)
