"""The Triton kernels of the anchor log-sum-exp, compiled ahead of time."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from robustdml_ops.anchor.kernels import anchor_lse, fused_anchor_lse
from robustdml_ops.anchor.triton import epilogue_launch, fused_launch
from tests.ahead_of_time import ARCHITECTURES, Constant, check


def epilogue(sets, compute, B=1024):
    """The whole of it: gradients, an anchor bias, gradients of the biases."""
    vectors = ("S", "positive_bias", "negative_bias", "anchor_bias", "upstream_positive", "upstream_negative")
    arguments = dict.fromkeys((*vectors, "lse_positive", "lse_negative", "bias_partials"), compute)
    arguments |= dict.fromkeys(("c", "B", "upstream_positive_stride", "upstream_negative_stride"), "i32")
    arguments |= {"first": "i32", "ARE_LOGITS": Constant(sets == "logits"), **sets_arguments(sets, compute)}
    parameters = epilogue_launch(B, compute, sets == "labels", sets == "confidences")
    return anchor_lse, arguments, lambda architecture: parameters


def fused(sets, D, operand, proxies=torch.float32, input_precision="tf32", B=1024):
    vectors = ("positive_bias", "negative_bias", "anchor_bias", "lse_positive", "lse_negative")
    arguments = {"X": operand, "P": proxies, **dict.fromkeys(vectors, torch.float32), "D": Constant(D)}
    arguments |= {"B": "i32", "C": "i32", "row_stride": "i32", "column_stride": Constant(1)}
    arguments |= sets_arguments(sets, torch.float32)

    def parameters(architecture):
        return fused_launch(B, D, operand, sets == "labels", input_precision, hopper=architecture == 90)

    return fused_anchor_lse, arguments, parameters


def sets_arguments(sets, compute):
    """Confidences as users have them, (B, C) by rows; logits as the sweep makes them, (c, B) by rows."""
    numbers = dict.fromkeys(("alpha", "beta", "threshold"), "fp64")
    if sets == "labels":
        strides = {"anchor_stride": "i32", "candidate_stride": "i32"}
        return {"labels": "*i64", "values": Constant(None), **strides, **numbers}
    strides = {"anchor_stride": Constant(1), "candidate_stride": "i32"}
    if sets == "logits":
        strides = {"anchor_stride": "i32", "candidate_stride": Constant(1)}
    return {"labels": Constant(None), "values": compute, **strides, **numbers}


ORDINARY_CORES = {
    "epilogue, labels": epilogue("labels", torch.float32),
    "epilogue, confidences": epilogue("confidences", torch.float32),
    "epilogue, logits": epilogue("logits", torch.float32),
    "epilogue, logits in float64": epilogue("logits", torch.float64),
    "fused, labels, fp32": fused("labels", 128, torch.float32, input_precision="ieee"),
}
TENSOR_CORES = {
    "fused, labels, bf16": fused("labels", 128, torch.bfloat16),
    "fused, labels, bf16, long rows": fused("labels", 512, torch.bfloat16),
    "fused, confidences, bf16": fused("confidences", 128, torch.bfloat16, proxies=torch.bfloat16),
    "fused, confidences, fp16, long rows": fused("confidences", 512, torch.float16),
    "fused, labels, tf32": fused("labels", 128, torch.float32),
    "fused, confidences, tf32, long rows": fused("confidences", 512, torch.float32),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [*ORDINARY_CORES, *TENSOR_CORES])
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    kernel = {**ORDINARY_CORES, **TENSOR_CORES}[name]
    check(*kernel, architecture, tmp_path, tensor_cores=name in TENSOR_CORES)
