"""The table of calls is whole, and each call runs and is differentiable as it says."""

import pytest
import torch

from tests.every_call import EVERY, LOSSES, OPS, PUBLIC_LOSSES, PUBLIC_OPS, first


def test_every_public_name_has_a_call():
    assert set(LOSSES) == PUBLIC_LOSSES
    assert set(OPS) == PUBLIC_OPS


@pytest.mark.parametrize("name", EVERY)
def test_the_call_runs_with_its_gradients(name):
    call = EVERY[name]
    inputs = {name: call.inputs()[name].requires_grad_() for name in call.differentiable}
    result = first(call(**inputs))
    assert torch.isfinite(result).all()
    assert result.requires_grad == bool(inputs)
    for gradient in torch.autograd.grad(result.sum(), list(inputs.values())) if inputs else ():
        assert torch.isfinite(gradient).all()
        assert (gradient != 0).any()
