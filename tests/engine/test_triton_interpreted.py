"""Triton without a GPU: its tests in the interpreter, and what keeps it out of the way of everybody else."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from robustdml_ops.engine import triton as epilogue_triton
from robustdml_ops.engine.dispatch import choose

HERE = Path(__file__).parent


def interpreter_refusal() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.is_available():
        return "these tests run on the GPU themselves"
    import triton

    version, numpy_version = (tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, numpy))
    return (
        "Triton before 3.9 needs numpy < 2.4 for its interpreter"
        if version < (3, 9) and numpy_version >= (2, 4)
        else None
    )


def environment(**changes: str) -> dict[str, str]:
    """The environment without what pytest and its workers left there."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "TRITON_"))}
    return {**kept, **changes}


@pytest.mark.skipif(interpreter_refusal() is not None, reason=str(interpreter_refusal()))
@pytest.mark.parametrize("file", ["test_triton.py", "test_triton_class_lse.py", "test_pairs_triton.py"])
def test_in_the_interpreter(file):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / file)]
    run = subprocess.run(
        command, env=environment(TRITON_INTERPRET="1"), cwd=HERE.parents[1], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert " passed" in run.stdout


def test_import_does_not_import_triton():
    code = "import sys, robustdml_ops.engine.sweep; print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_missing_triton_is_a_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert epilogue_triton.unavailable(torch.device("cuda"), torch.float32) == "triton is not installed"


def test_cpu_without_the_interpreter_is_an_error_that_says_so(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    pytest.importorskip("triton", reason="Triton is not installed")
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        choose("triton", torch.device("cpu"), torch.float32)
