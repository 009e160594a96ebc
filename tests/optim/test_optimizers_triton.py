"""Steps within the sweep of the Triton backend: against those of the eager one."""

import copy

import pytest
import torch

from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW
from tests.triton_here import DEVICE, MARKS

pytestmark = MARKS


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, NormalizedSoftmaxLoss])
@pytest.mark.parametrize(
    ("rule", "settings", "dtype"),
    [
        (ProxyAdamW, {"moments": torch.bfloat16}, torch.float32),
        (ProxyAdamW, {"moments": torch.bfloat16}, torch.bfloat16),
        (ProxyAdagrad, {}, torch.float32),
    ],
)
def test_steps_are_those_of_the_eager_backend(small_chunks, kind, rule, settings, dtype):
    ours = kind(16, 16, backend="triton").to(DEVICE, dtype)
    theirs = copy.deepcopy(ours)
    theirs.backend = "eager"
    optimizers = [(loss, rule(loss, lr=0.01, **settings)) for loss in (ours, theirs)]
    for _ in range(2):
        X, labels = torch.randn(16, 16, device=DEVICE), torch.randint(16, (16,), device=DEVICE)
        for loss, optimizer in optimizers:
            loss(X, labels).backward()
            optimizer.step()
    (mine,), (exact,) = ours.parameters(), theirs.parameters()
    # A sum in another order may round what is bfloat16 the other way.
    if dtype == torch.bfloat16:
        assert (mine == exact).double().mean() > 0.97
        torch.testing.assert_close(mine, exact, rtol=2**-7, atol=1e-3)
    else:
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-3 if settings else 1e-5)
    assert mine.grad is None
