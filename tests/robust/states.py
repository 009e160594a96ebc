"""Comparing and saving states."""

import io

import pytest
import torch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def assert_same_state(first, second):
    """Bit for bit; a NaN equals a NaN."""
    states = first.state_dict(), second.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=0, atol=0, equal_nan=True, msg=name)


def load_saved(resumed, state):
    """Load a state by way of a file."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file))
