"""The table of calls is whole, and each call runs on every device and is differentiable as it says."""

import pytest
import torch

from tests.every_call import EVERY, LOSSES, OPS, PUBLIC_LOSSES, PUBLIC_OPS
from tests.robust.states import needs_gpu


def test_every_public_name_has_a_call():
    assert set(LOSSES) == PUBLIC_LOSSES
    assert set(OPS) == PUBLIC_OPS


def value_and_gradients(name, place, compiled=False):
    call = EVERY[name]
    torch.manual_seed(0)
    function = call.make()
    function = function.to(place) if name in LOSSES else function
    function = torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function
    return call.differentiated(function, call.on(place))


SEQUENTIAL = ("self_paced_descent", "self_paced_sweep")  # work on the host, value by value


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("name", EVERY)
def test_a_gpu_finds_what_the_cpu_does(name, place):
    """In float64, finite and not 0; also through the registered ops, which stand in compiled graphs."""
    expected = value_and_gradients(name, "cpu")
    assert torch.isfinite(expected[0]).all()
    assert expected[0].requires_grad == bool(expected[1])
    assert all(torch.isfinite(gradient).all() and gradient.any() for gradient in expected[1])
    torch.use_deterministic_algorithms(False)  # its NaN filling is not traced
    torch._dynamo.reset()
    found = [value_and_gradients(name, place)]
    # Compiled losses on the CPU: test_every_loss_compiled.py
    if name not in SEQUENTIAL and (name in OPS or place == "cuda"):
        found.append(value_and_gradients(name, place, compiled=True))
    for result, gradients in found:
        assert result.device.type == place
        for mine, theirs in zip((result, *gradients), (expected[0], *expected[1]), strict=True):
            torch.testing.assert_close(mine.cpu(), theirs)
