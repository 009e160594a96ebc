"""Triton without a GPU: its tests in the interpreter, and what keeps it out of the way of everybody else."""

import importlib.util

import numpy
import pytest
import torch

from robustdml_ops.backends import triton_device
from tests.subprocesses import ROOT, run_python


def interpreter_refusal() -> str | None:
    if triton_device.missing() is not None:
        return triton_device.missing()
    if torch.cuda.is_available():
        return "these tests run on the GPU themselves"
    import triton

    version, numpy_version = (tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, numpy))
    return (
        "Triton before 3.9 needs numpy < 2.4 for its interpreter"
        if version < (3, 9) and numpy_version >= (2, 4)
        else None
    )


@pytest.mark.skipif(interpreter_refusal() is not None, reason=str(interpreter_refusal()))
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_in_the_interpreter(few):
    files = map(str, sorted((ROOT / "tests").glob("*/test_*_triton.py")))
    chosen = ["--end-cases"] if few else []
    run = run_python("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *chosen, *files, TRITON_INTERPRET="1")
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


def test_missing_triton_is_a_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert triton_device.unavailable(torch.device("cuda"), torch.float32) == "triton is not installed"


def test_an_old_triton_is_a_reason(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(triton_device, "_version", lambda: (3, 5))
    reason = triton_device.unavailable(torch.device("cuda"), torch.float32)
    assert reason == "the kernels need Triton 3.6, which PyTorch 2.10 and later have, and this is 3.5"
