"""All kernels compiled ahead of time, with the launch parameters and for the GPUs they are shipped for."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("under TRITON_INTERPRET=1 kernels are Python functions: nothing to compile", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from robustdml_ops.engine.triton.kernels import launch  # noqa: E402
from robustdml_ops.engine.triton.kernels.anchor_lse import anchor_lse  # noqa: E402
from robustdml_ops.engine.triton.kernels.class_lse import class_lse, class_lse_backward  # noqa: E402
from robustdml_ops.engine.triton.kernels.class_sums import add_partials  # noqa: E402
from robustdml_ops.engine.triton.kernels.fused_anchor_lse import fused_anchor_lse  # noqa: E402
from robustdml_ops.engine.triton.kernels.fused_class_lse import fused_class_lse  # noqa: E402
from robustdml_ops.engine.triton.kernels.pair_hinge import pair_hinge  # noqa: E402
from robustdml_ops.engine.triton.kernels.pair_lse import pair_lse  # noqa: E402
from robustdml_ops.engine.triton.kernels.rows import normalize_rows, normalize_rows_backward  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED_LIMIT = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes a block may use: CUDA C++ Programming Guide
TENSOR_CORE = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
COMPILER_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
MULTIPLES_OF_16 = ("B", "C", "D", "row_stride", "anchor_stride", "candidate_stride")
TYPE_NAME = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Constant:
    """An argument known to the compiler: None, or a stride of 1."""

    def __init__(self, value):
        self.value = value


def normalize(D, source, operand, compute):
    arguments = {"P": source, "U": operand, "inverse_norm": compute, "row_stride": "i32", "column_stride": Constant(1)}
    return normalize_rows, {**arguments, "n": "i32", "D": "i32"}, lambda architecture: launch.rows(D)


def normalize_backward(D, operand, compute):
    arguments = {"G": compute, "U": operand, "inverse_norm": compute, "n": "i32", "D": "i32"}
    return normalize_rows_backward, arguments, lambda architecture: launch.rows(D)


def epilogue(sets, compute, B=1024):
    """The whole of it: gradients, an anchor bias, gradients of the biases."""
    vectors = ("S", "positive_bias", "negative_bias", "anchor_bias", "upstream_positive", "upstream_negative")
    arguments = dict.fromkeys((*vectors, "lse_positive", "lse_negative", "bias_partials"), compute)
    arguments |= dict.fromkeys(("c", "B", "upstream_positive_stride", "upstream_negative_stride"), "i32")
    arguments |= {"first": "i32", "ARE_LOGITS": Constant(sets == "logits"), **sets_arguments(sets, compute)}
    parameters = launch.anchor_lse(B, compute, sets == "labels", sets == "confidences")
    return anchor_lse, arguments, lambda architecture: parameters


def fused(sets, D, operand, proxies=torch.float32, input_precision="tf32", B=1024):
    vectors = ("positive_bias", "negative_bias", "anchor_bias", "lse_positive", "lse_negative")
    arguments = {"X": operand, "P": proxies, **dict.fromkeys(vectors, torch.float32), "D": Constant(D)}
    arguments |= {"B": "i32", "C": "i32", "row_stride": "i32", "column_stride": Constant(1)}
    arguments |= sets_arguments(sets, torch.float32)

    def parameters(architecture):
        return launch.fused_anchor_lse(B, D, operand, sets == "labels", input_precision, hopper=architecture == 90)

    return fused_anchor_lse, arguments, parameters


def pairs(kernel, m, compute, **constants):
    """The whole of it: gradients, candidate weights."""
    vectors = ("S", "candidate_weights", "upstream_positive", "upstream_negative", "lse_positive", "lse_negative")
    vectors += ("sums_positive", "sums_negative")
    arguments = dict.fromkeys(vectors, compute)
    arguments |= dict.fromkeys(("labels", "candidate_labels", "counts_positive", "counts_negative"), "*i64")
    arguments |= dict.fromkeys(("c", "m", "first", "upstream_positive_stride", "upstream_negative_stride"), "i32")
    arguments |= dict.fromkeys(("alpha", "beta", "base", "epsilon"), "fp64")
    arguments |= dict.fromkeys(
        (f"{side}_{what}" for side in ("positive", "negative") for what in ("margin", "offset")), "fp64"
    )
    arguments |= {name: Constant(value) for name, value in ({"ITSELF": True} | constants).items()}
    taken = {name: arguments[name] for name in kernel.arg_names if name in arguments}
    return kernel, taken, lambda architecture: launch.pairs(m, compute)


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


def class_arguments(pooling, compute, vectors):
    arguments = dict.fromkeys(("scale", "bias", *vectors), compute)
    arguments |= dict.fromkeys(("H", "B", "scale_stride"), "i32")
    return arguments | {"labels": "*i64", "gamma": "fp64", "POOLING": Constant(pooling)}


def class_epilogue(kernel, pooling, compute, B=1024):
    vectors = ("S", "target", "partials") if kernel is class_lse else ("S", "lse", "dlse", "dlogit")
    arguments = class_arguments(pooling, compute, vectors) | dict.fromkeys(("c", "first", "per_part"), "i32")
    return kernel, arguments, lambda architecture: launch.class_lse(B, compute)


def class_partials(parts):
    arguments = {"partials": torch.float32, "shift": torch.float64, "total": torch.float64}
    return add_partials, {**arguments, "parts": "i32", "B": "i32"}, lambda architecture: launch.add_partials(parts)


def fused_class(pooling, D, operand, proxies=torch.float32, input_precision="tf32", normalize=True, B=1024):
    arguments = class_arguments(pooling, torch.float32, ("target", "partials"))
    arguments |= {"X": operand, "P": proxies, "D": Constant(D), "NORMALIZE": Constant(normalize)}
    arguments |= {"C": "i32", "per_part": "i32", "row_stride": "i32", "column_stride": Constant(1)}
    parameters = launch.fused_class_lse(B, D, operand, pooling != "none", input_precision)
    return fused_class_lse, arguments, lambda architecture: parameters


KERNELS = {
    "normalize": normalize(128, torch.float32, torch.bfloat16, torch.float32),
    "normalize, long rows in float64": normalize(2048, torch.float64, torch.float64, torch.float64),
    "normalize backward": normalize_backward(512, torch.bfloat16, torch.float32),
    "epilogue, labels": epilogue("labels", torch.float32),
    "epilogue, confidences": epilogue("confidences", torch.float32),
    "epilogue, logits": epilogue("logits", torch.float32),
    "epilogue, logits in float64": epilogue("logits", torch.float64),
    "sums of parts": class_partials(512),
    **{
        f"{kernel.__name__}, {pooling}, {compute}": class_epilogue(kernel, pooling, compute)
        for kernel in (class_lse, class_lse_backward)
        for pooling, compute in [
            ("none", torch.float32),
            ("max", torch.float32),
            ("softmax", torch.float32),
            ("softmax", torch.float64),
        ]
    },
    "pair lse": pairs(pair_lse, 60_000, torch.float32, MINING=True, ROW_MAX=False),
    "pair lse, short rows in float64": pairs(pair_lse, 64, torch.float64, MINING=True, ROW_MAX=True),
    "pair hinge": pairs(pair_hinge, 60_000, torch.float32, EUCLIDEAN=False),
    "pair hinge, euclidean in float64": pairs(pair_hinge, 256, torch.float64, EUCLIDEAN=True),
}
FUSED_KERNELS = {
    "fused, labels, bf16": fused("labels", 128, torch.bfloat16),
    "fused, labels, bf16, long rows": fused("labels", 512, torch.bfloat16),
    "fused, confidences, bf16": fused("confidences", 128, torch.bfloat16, proxies=torch.bfloat16),
    "fused, confidences, fp16, long rows": fused("confidences", 512, torch.float16),
    "fused, labels, tf32": fused("labels", 128, torch.float32),
    "fused, confidences, tf32, long rows": fused("confidences", 512, torch.float32),
    "fused class, bf16": fused_class("none", 128, torch.bfloat16),
    "fused class, bf16, as they are": fused_class("none", 128, torch.bfloat16, normalize=False),
    "fused class, bf16, long rows": fused_class("none", 512, torch.bfloat16, proxies=torch.bfloat16),
    "fused class, tf32": fused_class("none", 128, torch.float32),
    "fused class, max, bf16": fused_class("max", 128, torch.bfloat16),
    "fused class, softmax, bf16": fused_class("softmax", 128, torch.bfloat16),
    "fused class, softmax, tf32, long rows": fused_class("softmax", 512, torch.float32),
}
ORDINARY_CORES = {
    "fused, labels, fp32": fused("labels", 128, torch.float32, input_precision="ieee"),
    "fused class, fp32": fused_class("none", 128, torch.float32, input_precision="ieee"),
    "fused class, softmax, fp32": fused_class("softmax", 128, torch.float32, input_precision="ieee"),
}


def compile_kernel(kernel, arguments, parameters_for, architecture):
    parameters = parameters_for(architecture)
    constants = {name: argument.value for name, argument in arguments.items() if isinstance(argument, Constant)}
    constants |= {name: value for name, value in parameters.items() if name not in COMPILER_OPTIONS}
    signature, attributes = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        kind = arguments[name]
        signature[name] = kind if isinstance(kind, str) else f"*{TYPE_NAME[kind]}"
        # Torch aligns allocations to 16 bytes at least, and real B, C, D and strides are multiples of 16.
        if signature[name].startswith("*") or name in (
            "B",
            "C",
            "D",
            "row_stride",
            "anchor_stride",
            "candidate_stride",
        ):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {name: parameters[name] for name in COMPILER_OPTIONS}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def resources(compiled, folder: Path) -> dict[str, int]:
    """Registers a thread (REG) and bytes of local memory a thread (STACK, LOCAL): spills stand in the stack."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [str(CUOBJDUMP), "--dump-resource-usage", str(cubin)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}


@pytest.mark.parametrize("architecture", SHARED_LIMIT)
@pytest.mark.parametrize("name", [*KERNELS, *FUSED_KERNELS, *ORDINARY_CORES])
def test_compiles_without_spills_within_shared_memory(name, architecture, tmp_path):
    compiled = compile_kernel(*{**KERNELS, **FUSED_KERNELS, **ORDINARY_CORES}[name], architecture)
    used = resources(compiled, tmp_path)
    assert 0 < used["REG"] <= 255
    assert used["STACK"] == used["LOCAL"] == 0, used
    assert compiled.metadata.shared <= SHARED_LIMIT[architecture]
    uses_tensor_cores = TENSOR_CORE[architecture] in compiled.asm["ptx"]
    assert uses_tensor_cores == (name in FUSED_KERNELS)
