"""The von Mises–Fisher functions in Triton: on a GPU, in the interpreter, and compiled ahead of time."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from robustdml_ops.engine.eager.vmf import evaluate_vmf as eager_vmf
from robustdml_ops.engine.triton import vmf as vmf_triton

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("log_0f1", "peak", "log_i", "ratio", "ratio_derivative")
ORDERS = {torch.float64: (0.0, 0.25, 9.5, 63.0, 255.0), torch.float32: (0.0, 0.25, 9.5, 31.0, 63.0)}
CASES = [(name, dtype) for dtype in ORDERS for name in FUNCTIONS if (name, dtype) != ("log_i", torch.float32)]
COMPARE = """
import torch
from tests.engine.test_vmf_triton import CASES, compare
for name, dtype in CASES:
    compare(name, dtype, torch.device("cpu"))
print("compared", len(CASES))
"""


def compare(function, dtype, device):
    """Against the eager functions in float64; A′ of small orders is what two terms nearly of its 1000-fold leave."""
    kappa = torch.cat([torch.logspace(-4, 4, 301), torch.tensor([0.0, -1.0, torch.nan, torch.inf, 1e30])])
    kappa = kappa.to(dtype).to(device)
    tolerance = (1e-11 if dtype == torch.float64 else 2e-4) if function == "ratio_derivative" else None
    tolerance = tolerance or (2e-14 if dtype == torch.float64 else 4e-7)
    for v in ORDERS[dtype]:
        ours = vmf_triton.evaluate_vmf(function, v, kappa)
        truth = eager_vmf(function, v, kappa.double())
        tiny = 1e-12 if function == "log_i" else 1e-37  # it has a zero; and what lies below float32's normal numbers
        torch.testing.assert_close(ours.double(), truth, rtol=tolerance, atol=tiny, equal_nan=True)
    assert vmf_triton.evaluate_vmf(function, 3.0, kappa[:0]).shape == (0,)


@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_on_the_gpu(function, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    compare(function, dtype, torch.device("cuda"))


def test_in_the_interpreter():
    if torch.cuda.is_available():
        pytest.skip("it runs on the GPU itself")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "TRITON_"))}
    environment |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", COMPARE], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip() == f"compared {len(CASES)}"


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_compiles_without_spills(function, dtype, architecture, tmp_path):
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("under TRITON_INTERPRET=1 kernels are Python functions: nothing to compile")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from robustdml_ops.engine.triton.kernels.vmf import vmf

    constants = vmf_triton.constants(function, 9.5, dtype) | {"BLOCK": vmf_triton.BLOCK}
    options = {"enable_fp_fusion": constants.pop("enable_fp_fusion")}
    pointer = "*fp64" if dtype == torch.float64 else "*fp32"
    types = {"kappa": pointer, "out": pointer, "count": "i32"}
    source = ASTSource(
        fn=vmf, signature={name: types.get(name, "constexpr") for name in vmf.arg_names}, constexprs=constants, attrs={}
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    report = subprocess.run([cuobjdump, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True)
    used = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report.stdout)}
    assert 0 < used["REG"] <= 128
    assert used["STACK"] == used["LOCAL"] == 0
