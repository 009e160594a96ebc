"""Steps within the sweep of the Triton backend: against those of the eager one."""

import copy

import pytest
import torch

from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW
from tests.triton_here import DEVICE, MARKS

pytestmark = MARKS


@pytest.mark.parametrize("kind", [ProxyAnchorLoss, NormalizedSoftmaxLoss])
@pytest.mark.parametrize(("rule", "settings"), [(ProxyAdamW, {"moments": torch.bfloat16}), (ProxyAdagrad, {})])
def test_steps_are_those_of_the_eager_backend(small_chunks, kind, rule, settings):
    ours = kind(16, 16, backend="triton").to(DEVICE)
    theirs = copy.deepcopy(ours)
    theirs.backend = "eager"
    optimizers = [(loss, rule(loss, lr=0.01, **settings)) for loss in (ours, theirs)]
    for _ in range(2):
        X, labels = torch.randn(16, 16, device=DEVICE), torch.randint(16, (16,), device=DEVICE)
        for loss, optimizer in optimizers:
            loss(X, labels).backward()
            optimizer.step()
    (mine,), (exact,) = ours.parameters(), theirs.parameters()
    # A sum in another order may round a bfloat16 moment the other way.
    torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-3 if settings else 1e-5)
    assert mine.grad is None
