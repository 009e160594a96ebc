"""What the tests' own fixtures promise."""

import warnings

import pytest
import torch


def test_a_wait_that_is_found_leaves_later_tests_alone(no_waiting, monkeypatch):
    modes = []

    def set_mode(mode):
        warnings.warn("a prototype feature", UserWarning, stacklevel=2)
        modes.append(mode)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with pytest.raises(RuntimeError, match="waits"), no_waiting():
        raise RuntimeError("this operation waits")
    assert modes == ["error", "default"]
