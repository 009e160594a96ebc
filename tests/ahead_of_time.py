"""Triton's kernels compiled without a GPU, in the very variants that the package launches.

Launches on "meta" go as far as Triton's compiler, which sees what it would see on a GPU: which strides and numbers are
multiples of 16, which numbers are 1, which arguments are None.
"""

import contextlib
import os
import re
import subprocess
from pathlib import Path
from unittest import mock

import pytest

triton = pytest.importorskip("triton", minversion="3.6", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("under TRITON_INTERPRET=1 kernels are Python functions: nothing to compile", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from robustdml_ops.backends import cards  # noqa: E402
from tests.launches import counted  # noqa: E402
from tests.nightly import nightly_but  # noqa: E402

RUN = JITFunction.run
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
NVDISASM = CUOBJDUMP.with_name("nvdisasm")
# Bytes a block may use, by compute capability: CUDA C++ Programming Guide.
SHARED_LIMIT = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
OLDER_TRITON = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
ARCHITECTURES = nightly_but([90], SHARED_LIMIT)
ELEMENTWISE = {"otsu", "vmf", "lambert_w", "confidence", "superloss", "keep_finite", "assign_slots", "exchange_rows"}
ELEMENTWISE |= {"link_copies", "class_logits"}
TENSOR_CORE = {90: "wgmma.mma_async", 100: "tcgen05.mma"}  # "mma.sync" of the others


class StubDriver:
    """What Triton asks of a driver before it compiles."""

    def __init__(self, architecture):
        self.architecture = architecture

    def get_current_device(self):
        return self.architecture  # each has its own cache of kernels

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.architecture, 32)


@contextlib.contextmanager
def compiling(architecture):
    """Launches within are compiled for ``architecture`` and not run; yields the list of them, kernels by name."""
    compiled = []

    def compile_alone(kernel, *arguments, grid, warmup, **named):
        compiled.append((kernel.__name__, RUN(kernel, *arguments, grid=grid, warmup=True, **named)))

    driver.set_active(StubDriver(architecture))
    try:
        with (
            counted(),
            mock.patch.object(JITFunction, "run", compile_alone),
            mock.patch.object(cards, "architecture", return_value=f"sm_{architecture}"),
        ):
            yield compiled
    finally:
        driver.set_active(None)


def check_resources(compiled, folder: Path, registers: int = 255):
    """At most so many registers a thread (REG) and no local memory (STACK, LOCAL): spills stand in the stack.

    So does, in 8 bytes, where the threads of a branch meet again: what of the stack is spills, the assembler tells.
    Far from the limit it may still spill two numbers around a branch, by its own choice, for more blocks a processor.
    """
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [str(CUOBJDUMP), "--dump-resource-usage", str(cubin)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    assert 0 < used["REG"] <= registers
    assert used["LOCAL"] == 0, used
    by_choice = 16 if used["REG"] <= 128 else 0
    known = known_stack(compiled.metadata.target.arch)
    assert used["STACK"] <= known or (used["STACK"] == 8 and spilled_bytes(compiled, folder) <= by_choice), used


def known_stack(architecture):
    """Bytes of stack that kernels take although registers are left, as counted: no more than these."""
    if OLDER_TRITON:
        return 80  # PyTorch 2.10 and 2.11 bring 3.6
    return 24 if architecture == 120 else 0


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


def check(name, kernel, architecture, folder: Path, tensor_cores: set[str]):
    """No spills, shared memory that the device has, and products by tensor cores in the kernels named."""
    elementwise = name in ELEMENTWISE
    # Half of the registers, so that two blocks fit a processor; Triton 3.6 takes more on sm_120 in float64.
    few = 168 if OLDER_TRITON and architecture == 120 else 128
    check_resources(kernel, folder, few if elementwise else 255)
    assert kernel.metadata.shared <= (48 << 10 if elementwise else SHARED_LIMIT[architecture]), name
    assert (TENSOR_CORE.get(architecture, "mma.sync") in kernel.asm["ptx"]) == (name in tensor_cores), name


def instructions(compiled, folder: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """All of SASS, the machine's own code, and the first and the end of its loops."""
    if not NVDISASM.exists():
        pytest.skip("nvdisasm is not installed: this Triton does not bring it")
    cubin = folder / "counted.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    listing = subprocess.run([str(NVDISASM), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    listed, labels, found = [], {}, []
    for line in listing.splitlines():
        if label := re.match(r"\s*(\.L\w+):", line):
            labels[label[1]] = len(listed)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", line):
            listed.append(instruction[1])
            target = re.search(r"\bBRA\b.*\((\.L\w+)\)", instruction[1])
            first = labels.get(target[1]) if target else None
            if first is not None and first < len(listed) - 1:  # one that leaps to itself ends the code
                found.append((first, len(listed)))
    return listed, found


def loops(compiled, folder: Path) -> list[list[str]]:
    """The instructions of each innermost loop, in the order of SASS."""
    listed, found = instructions(compiled, folder)
    # Leaps back to what was moved out of the way look like loops around others.
    inner = [loop for loop in found if not any(loop != other and loop[0] <= other[0] < loop[1] for other in found)]
    return [listed[first:end] for first, end in sorted(inner)]
