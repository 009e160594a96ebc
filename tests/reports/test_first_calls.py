"""The first call of a process is right under any mode of PyTorch, and so is the next one without the mode."""

import ast
import json
import os
from pathlib import Path

import pytest

import robustdml_ops
from tests.nightly import nightly_but
from tests.reports.first_calls import MODES
from tests.subprocesses import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")


@pytest.mark.parametrize("options", nightly_but([[]], [[], ["--all"]]))
def test_of_each_loss_and_op_under_each_mode(options):
    run = run_python("-m", "tests.reports.first_calls", *options, OMP_NUM_THREADS="1", timeout=1200)
    assert run.returncode == 0, run.stderr[-3000:]
    wrong = json.loads(run.stdout)
    assert {mode: names for mode, names in wrong.items() if names} == {}
    assert wrong.keys() == MODES.keys()


# Of torch; their results lie on the default device and are of the default type unless these are given.
MAKERS = {
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
}
# A module's own tensors follow the default device, as in PyTorch.
OF_MODULES = {"__init__", "_add_class_matrix", "initial_buffers"}


def makers_without_device(path):
    """Lines that make a tensor wherever the user's default device is."""
    tree = ast.parse(path.read_text())
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in OF_MODULES:
            continue
        for call in ast.walk(function):
            named = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            if not named or call.func.attr not in MAKERS or getattr(call.func.value, "id", "") != "torch":
                continue
            if not any(keyword.arg in ("device", None) for keyword in call.keywords):
                yield f"{path.name}:{call.lineno}"


def test_no_tensor_of_the_library_follows_the_default_device():
    root = Path(robustdml_ops.__file__).parent
    own = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in ("bench", "python_ref")]
    assert len(own) > 50
    assert [line for path in own for line in makers_without_device(path)] == []
