"""Triton's kernels compiled ahead of time, with the launch parameters and for the GPUs they are shipped for."""

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

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SHARED_LIMIT = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes a block may use: CUDA C++ Programming Guide
ARCHITECTURES = tuple(SHARED_LIMIT)
TENSOR_CORE = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}
COMPILER_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
MULTIPLES_OF_16 = ("B", "C", "D", "row_stride", "anchor_stride", "candidate_stride")
MULTIPLES_OF_16 += ("X_row_stride", "P_row_stride", "S_stride")
TYPE_NAME = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Constant:
    """An argument known to the compiler: None, or a stride of 1."""

    def __init__(self, value):
        self.value = value


def compile_kernel(kernel, arguments, parameters, architecture):
    """Compile ``kernel`` for arguments given as a pointer's dtype, a type's name or a :class:`Constant`."""
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
        if signature[name].startswith("*") or name in MULTIPLES_OF_16:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {name: value for name, value in parameters.items() if name in COMPILER_OPTIONS}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def check_resources(compiled, folder: Path, registers: int = 255):
    """At most so many registers a thread (REG) and no local memory (STACK, LOCAL): spills stand in the stack.

    So does, in 8 bytes, where the threads of a branch meet again: what of the stack is spills, the assembler tells.
    """
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [str(CUOBJDUMP), "--dump-resource-usage", str(cubin)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    assert 0 < used["REG"] <= registers
    assert used["LOCAL"] == 0, used
    assert used["STACK"] == 0 or (used["STACK"] == 8 and not spilled_bytes(compiled, folder)), used


def spilled_bytes(compiled, folder: Path) -> int:
    """Bytes that a thread stores because it has no register for them."""
    source, target = folder / "kernel.ptx", re.search(r"\.target (sm_\w+)", compiled.asm["ptx"])
    source.write_text(compiled.asm["ptx"])
    for assembler in sorted(CUOBJDUMP.parent.glob("ptxas*")):  # some bring an older one for older devices
        command = [str(assembler), "-v", f"--gpu-name={target[1]}", str(source), "-o", str(folder / "again.cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r"(\d+) bytes spill stores", said.stderr + said.stdout)
        if said.returncode == 0 and found:
            return int(found[1])
    raise AssertionError("no assembler takes the kernel")


def check(kernel, arguments, parameters_for, architecture, folder: Path, *, tensor_cores: bool):
    """No spills, shared memory within the device's limit, and products where they belong."""
    compiled = compile_kernel(kernel, arguments, parameters_for(architecture), architecture)
    check_resources(compiled, folder)
    assert compiled.metadata.shared <= SHARED_LIMIT[architecture]
    assert (TENSOR_CORE[architecture] in compiled.asm["ptx"]) == tensor_cores


def check_elementwise(kernel, arguments, parameters, architecture, folder: Path):
    """Half of the registers, so that two blocks fit a processor, and shared memory that every device has."""
    compiled = compile_kernel(kernel, arguments, parameters, architecture)
    check_resources(compiled, folder, registers=128)
    assert compiled.metadata.shared <= 48 << 10
