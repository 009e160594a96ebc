"""Which backend is taken, why, and what is said when it can't be."""

import warnings

import pytest
import torch

from robustdml_ops.backends import dispatch as backends
from robustdml_ops.backends import native_module as module
from robustdml_ops.ops.anchor.sweep import BACKENDS
from robustdml_ops.ops.lambert_w.backends import BACKENDS as LAMBERT_W

CPU, F32 = torch.device("cpu"), torch.float32
NATIVE, EAGER = BACKENDS["native"], BACKENDS["eager"]


def test_explicit_choice_and_environment(monkeypatch):
    assert backends.choose(BACKENDS, "eager", CPU, F32) is EAGER
    monkeypatch.setenv("ROBUSTDML_BACKEND", "eager")
    assert backends.choose(BACKENDS, None, CPU, F32) is EAGER
    assert backends.choose(BACKENDS, "native", CPU, F32) is NATIVE  # an argument goes before the environment


@pytest.mark.parametrize("source", ["argument", "environment"])
def test_unknown_name(source, monkeypatch):
    if source == "environment":
        monkeypatch.setenv("ROBUSTDML_BACKEND", "cublas")
    with pytest.raises(ValueError, match="backend='cublas': expected one of native, triton, eager or auto"):
        backends.choose(BACKENDS, "cublas" if source == "argument" else None, CPU, F32)


def test_an_explicit_choice_that_cannot_run_raises_with_the_reason():
    with pytest.raises(RuntimeError, match=r"backend='triton' can't run here: .*TRITON_INTERPRET=1"):
        backends.choose(BACKENDS, "triton", CPU, F32)
    with pytest.raises(RuntimeError, match=r"backend='native' can't run here: .*meta"):
        backends.choose(BACKENDS, "native", torch.device("meta"), F32)


def test_without_the_native_module_eager_serves_and_says_so_once(monkeypatch):
    monkeypatch.setattr(module, "library", None)
    monkeypatch.setattr(module, "_REASON", "no compiler was found", raising=False)
    backends._tell_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="native can't serve cpu: no compiler was found"):
        assert backends.choose(BACKENDS, None, CPU, F32) is EAGER
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.choose(BACKENDS, None, CPU, F32) is EAGER


def test_a_room_without_a_backend_says_which_it_has():
    table = {name: LAMBERT_W[name] for name in ("native", "eager")}
    with pytest.raises(
        RuntimeError,
        match=r"^backend='triton' can't run here: it has native and eager alone\. Use backend='auto' to take what can",
    ):
        backends.choose(table, "triton", CPU, F32)
    assert backends.choose(table, "eager", CPU, F32) is table["eager"]


def test_the_environment_leaves_a_room_without_that_backend_free(monkeypatch):
    table = {name: LAMBERT_W[name] for name in ("native", "eager")}
    monkeypatch.setenv("ROBUSTDML_BACKEND", "triton")
    assert backends.choose(table, None, CPU, F32) is table["native"]
    assert backends.choose(table, "auto", CPU, F32) is table["native"]
    with pytest.raises(RuntimeError, match=r"backend='triton' can't run here: .*TRITON_INTERPRET=1"):
        backends.choose(BACKENDS, None, CPU, F32)


def test_a_device_that_nobody_prefers_is_served_by_eager():
    assert backends.choose(BACKENDS, None, torch.device("meta"), F32) is EAGER
