"""Which backend is taken, why, and what is said when it can't be."""

import subprocess
import sys
import warnings

import pytest
import torch

from robustdml_ops.engine import dispatch
from robustdml_ops.engine import eager as epilogue_eager
from robustdml_ops.engine import native as epilogue_native
from robustdml_ops.engine.native import module

CPU, F32 = torch.device("cpu"), torch.float32


def test_cpu_takes_the_native_module():
    assert dispatch.choose(None, CPU, F32) is epilogue_native
    assert dispatch.choose("auto", CPU, torch.float64) is epilogue_native


def test_explicit_choice_and_environment(monkeypatch):
    assert dispatch.choose("eager", CPU, F32) is epilogue_eager
    monkeypatch.setenv("ROBUSTDML_BACKEND", "eager")
    assert dispatch.choose(None, CPU, F32) is epilogue_eager
    assert dispatch.choose("native", CPU, F32) is epilogue_native  # an argument goes before the environment


@pytest.mark.parametrize("source", ["argument", "environment"])
def test_unknown_name(source, monkeypatch):
    if source == "environment":
        monkeypatch.setenv("ROBUSTDML_BACKEND", "cublas")
    with pytest.raises(ValueError, match="backend='cublas': expected one of native, triton, eager or auto"):
        dispatch.choose("cublas" if source == "argument" else None, CPU, F32)


def test_an_explicit_choice_that_cannot_run_raises_with_the_reason():
    with pytest.raises(RuntimeError, match=r"backend='triton' can't run here: .*TRITON_INTERPRET=1"):
        dispatch.choose("triton", CPU, F32)
    with pytest.raises(RuntimeError, match=r"backend='native' can't run here: .*meta"):
        dispatch.choose("native", torch.device("meta"), F32)


def test_without_the_native_module_eager_serves_and_says_so_once(monkeypatch):
    monkeypatch.setattr(module, "library", None)
    monkeypatch.setattr(module, "_REASON", "no compiler was found", raising=False)
    monkeypatch.setattr(dispatch, "_told", set())
    with pytest.warns(RuntimeWarning, match="native can't serve cpu: no compiler was found"):
        assert dispatch.choose(None, CPU, F32) is epilogue_eager
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dispatch.choose(None, CPU, F32) is epilogue_eager


def test_import_is_light():
    """The package imports neither Triton nor any library of the recipes."""
    code = (
        "import sys, robustdml_ops.losses, robustdml_ops.ops; "
        "print([m for m in ('triton', 'matplotlib', 'sklearn', 'pytorch_metric_learning', 'PIL') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
