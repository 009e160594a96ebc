"""Recorded steps of a GPU's plans: Triton's kernels and the products between them, replayed."""

from functools import partial

import pytest
import torch

from robustdml_ops import losses
from tests.emulated_graphs import emulated_graphs
from tests.triton_here import DEVICE, MARKS

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice|divide):RuntimeWarning")]
B, C, D = 9, 7, 16
KINDS = {
    "Proxy-Anchor": partial(losses.ProxyAnchorLoss, C, D),
    "softmax": partial(losses.NormalizedSoftmaxLoss, C, D),
    "ArcFace": partial(losses.ArcFaceLoss, C, D),
    "multi-similarity": losses.MultiSimilarityLoss,
}


@pytest.fixture(autouse=True)
def graphs():
    if DEVICE.type == "cuda":
        yield
        return
    with emulated_graphs():
        yield


def batch(seed):
    random = torch.Generator().manual_seed(seed)
    X, y = torch.randn(B, D, generator=random), torch.randint(C, (B,), generator=random)
    return X.to(DEVICE).requires_grad_(), y.to(DEVICE)


@pytest.mark.parametrize("name", KINDS)
def test_accumulated_gradients_are_those_of_plain_steps(name):
    """Three replays, whose gradients are kept and added up without being cleared."""
    mine, other = (KINDS[name](backend="triton").to(DEVICE) for _ in range(2))
    other.load_state_dict(mine.state_dict())
    step = mine.recorded(*batch(0))
    found = []
    for function in (step, other):
        batches = [batch(seed) for seed in range(3)]
        values = []
        for factor, (X, y) in enumerate(batches, start=1):
            values.append(function(X, y))
            (factor * values[-1]).backward()
        found.append([value.detach() for value in values] + [X.grad for X, _ in batches])
        found[-1] += [parameter.grad for parameter in (mine if function is step else other).parameters()]
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert step.graphs is not None
