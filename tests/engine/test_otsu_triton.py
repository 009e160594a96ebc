"""Otsu's cut and Lambert's W in Triton: on a GPU, in the interpreter, and compiled ahead of time."""

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

from robustdml_ops.engine import eager, native
from robustdml_ops.engine import triton as backend_triton
from robustdml_ops.engine.otsu import threshold_and_confidence
from robustdml_ops.engine.triton.kernels import launch
from robustdml_ops.engine.triton.lambert_w import BLOCK
from robustdml_ops.engine.triton.otsu import LONGEST

ROOT = Path(__file__).parents[2]
DTYPES = (torch.float32, torch.float64)
ELEMENTWISE = ("lambert_w", "confidence", "superloss")
COMPARE = """
import torch
from tests.engine.test_otsu_triton import DTYPES, compare_cuts, compare_w
from robustdml_ops.engine import triton
for dtype in DTYPES:
    compare_w(triton, dtype, torch.device("cpu"))
    compare_cuts(triton, dtype, torch.device("cpu"), (1, 4, 17, 40))
print("compared", len(DTYPES))
"""


def name_of(backend):
    return backend.__name__.rsplit(".", 1)[-1]


def compare_cuts(backend, dtype, device, lengths):
    """Against eager in every bit: ties, offsets, and what is not finite; with confidences the same as without."""
    for n in lengths:
        values = torch.randn(5, n, generator=torch.Generator().manual_seed(n), dtype=dtype)
        values[1] = values[1].round() + 1e6
        values[2] = values[2] * 1e-30
        values[3, ::3], values[4, ::5] = torch.nan, -torch.inf
        ours, theirs = (b.otsu_cut(values.to(device), 2) for b in (backend, eager))
        for name, mine, other in zip(ours._fields, ours, theirs, strict=True):
            assert torch.equal(mine, other), (n, name, mine, other)
        threshold, sigma = threshold_and_confidence(values[0].to(device), 2, 0.1, name_of(backend))
        assert torch.equal(threshold, ours.threshold[0])
        assert torch.equal(sigma, backend.confidence(values[0].to(device), threshold, 0.1))


def compare_w(backend, dtype, device):
    """Against eager in float64."""
    x = torch.cat(
        [-0.36787 + torch.logspace(-6, -0.5, 60), torch.logspace(-37, 30, 150), torch.linspace(-0.3, 0.3, 80)]
    )
    x = torch.cat([x, torch.tensor([torch.inf, torch.nan, -1.0, 0.0])]).to(dtype).to(device)
    bar = 4 * torch.finfo(dtype).eps

    def close(ours, theirs, tolerance=bar):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * 1e-30, equal_nan=True)

    close(backend.lambert_w(x), eager.lambert_w(x.double()))
    for tau in (torch.zeros(1), torch.linspace(0, 1e-3, len(x))):
        # 2 lambda is 1: x is not rounded but where tau is not 0, and W(x) feels it near -1/e alone.
        tau = tau.to(dtype).to(device)
        difference = (x - tau).double()
        close(backend.confidence(x, tau, 0.5), eager.confidence(difference, torch.zeros_like(difference), 0.5))
        value, sigma = backend.superloss(x, tau, 0.5)
        their_value, their_sigma = eager.superloss(difference, torch.zeros_like(difference), 0.5)
        close(sigma, their_sigma)
        far = difference > -0.3
        close(value[far], their_value[far], 4 * bar)
    assert backend.lambert_w(x[:0]).shape == (0,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", [backend_triton, native], ids=["triton", "native"])
def test_on_the_gpu(backend, dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    reason = backend.unavailable(device, dtype)
    if reason:
        pytest.skip(reason)
    torch.use_deterministic_algorithms(True)
    compare_w(backend, dtype, device)
    compare_cuts(backend, dtype, device, (1, 2, 5, 64, 257, 1024, 4096, 8192, 20_000))


def test_in_the_interpreter():
    if torch.cuda.is_available():
        pytest.skip("it runs on the GPU itself")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "TRITON_"))}
    environment |= {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", COMPARE], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip() == f"compared {len(DTYPES)}"


def compile_kernel(kernel, types, constants, options, architecture):
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs={})
    return compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def check_resources(compiled, registers, folder):
    import triton

    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    cuobjdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    report = subprocess.run([cuobjdump, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True)
    used = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report.stdout)}
    assert 0 < used["REG"] <= registers
    assert used["STACK"] == used["LOCAL"] == 0
    assert compiled.metadata.shared <= 48 << 10


compiles = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="under TRITON_INTERPRET=1 kernels are Python functions"
)


@compiles
@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_kernels_compile_without_spills(name, dtype, architecture, tmp_path):
    from robustdml_ops.engine.triton.kernels import lambert_w as kernels

    kernel = getattr(kernels, name)
    pointer = "*fp64" if dtype == torch.float64 else "*fp32"
    types = dict.fromkeys(kernel.arg_names[:-1], pointer) | {"count": "i32", "stride": "i32"}
    constants = {"BLOCK": BLOCK}
    check_resources(compile_kernel(kernel, types, constants, {"enable_fp_fusion": True}, architecture), 128, tmp_path)


@compiles
@pytest.mark.parametrize(
    ("architecture", "dtype", "n"), [(80, torch.float32, 256), (90, torch.float32, LONGEST), (100, torch.float64, 256)]
)
def test_the_cut_compiles_without_spills(architecture, dtype, n, tmp_path):
    from robustdml_ops.engine.triton.kernels.otsu import otsu

    parameters = launch.otsu(n)
    pointer = "*fp64" if dtype == torch.float64 else "*fp32"
    types = dict.fromkeys(("values", "threshold", "low_mean", "high_mean"), pointer)
    types |= {"index": "*i64", "excluded": "*i64", "found": "*i1", "n": "i32", "min_group": "i32"}
    constants = {"BLOCK": parameters.pop("BLOCK")}
    check_resources(compile_kernel(otsu, types, constants, parameters, architecture), 128, tmp_path)
