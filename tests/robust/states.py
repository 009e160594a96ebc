"""Comparing and saving states, and clusters of which some samples carry a wrong label."""

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


def clusters(classes, size, D, spread, wrong, seed=0):
    """Rows around a unit direction for each class, their given labels, and the true ones."""
    random = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(classes, D, generator=random))
    true = torch.arange(classes).repeat_interleave(size)
    rows = directions[true] + spread * torch.randn(len(true), D, generator=random)
    is_wrong = torch.rand(len(true), generator=random) < wrong
    other = (true + torch.randint(1, classes, (len(true),), generator=random)) % classes
    return rows, torch.where(is_wrong, other, true), true
