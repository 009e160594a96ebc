"""What can be said of the CUDA kernels where nvcc is found, GPU or not."""

import re
import subprocess

import native_builds
import pytest

CSRC = native_builds.ROOT / "csrc"
ARCHITECTURES = ["80", "100"]  # `make wheels` compiles for the others
KERNELS = [str(path.relative_to(CSRC)) for path in sorted(CSRC.glob("*/cuda.cu")) if "__global__" in path.read_text()]


@pytest.fixture(scope="module")
def nvcc():
    path = native_builds.tool("nvcc")
    if path is None:
        pytest.skip("no nvcc on PATH")
    return path


# The short suite compiles one small kernel for one architecture.
ALL = (pytest.param(kernel, ARCHITECTURES, marks=pytest.mark.nightly) for kernel in KERNELS)


@pytest.mark.parametrize(("source", "architectures"), [("rows/cuda.cu", ARCHITECTURES[:1]), *ALL])
def test_compiles_without_warnings_and_spills(nvcc, source, architectures, tmp_path):
    command = [
        nvcc, "-std=c++17", "-O3", "-I", CSRC, "-Xptxas=-v", "-Xcompiler=-Wall,-Wextra", "-c",
        *(f"-gencode=arch=compute_{number},code=sm_{number}" for number in architectures),
        CSRC / source, "-o", tmp_path / "kernels.o",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    report = result.stdout + result.stderr
    assert result.returncode == 0, report
    assert "warning" not in report
    kernels = re.findall(r"Compiling entry function '(\w+)' for 'sm_(\w+)'", report)
    assert {architecture for _, architecture in kernels} == set(architectures)
    memory = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert len(memory) == len(kernels)
    spilling = [kernel for kernel, numbers in zip(kernels, memory, strict=True) if numbers != ("0", "0", "0")]
    assert not spilling
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", report)]
    # Two blocks of 256 threads fit a processor's 64 Ki registers.
    assert len(registers) == len(kernels)
    assert max(registers) <= 128
