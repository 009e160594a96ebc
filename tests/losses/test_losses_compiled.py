"""Losses under torch.compile with sizes that change: one graph, and the values and gradients of eager mode."""

import pytest
import torch

from robustdml_ops.losses import ContrastiveLoss, MultiSimilarityLoss, ProxyAnchorLoss, ProxyNCALoss, SoftTripleLoss

LOSSES = {
    "proxy-anchor": lambda: ProxyAnchorLoss(7, 8),
    "proxy-nca": lambda: ProxyNCALoss(7, 8),
    "soft-triple": lambda: SoftTripleLoss(7, 8, 3),
    "multi-similarity": lambda: MultiSimilarityLoss(epsilon=0.1),
    "contrastive": lambda: ContrastiveLoss(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_dynamic_sizes(name):
    torch._dynamo.reset()
    module = LOSSES[name]()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for B in (16, 12, 31):
        X, y = torch.randn(B, 8, requires_grad=True), torch.arange(B) // 5
        inputs = [X, *module.parameters()]
        ours, theirs = compiled(X, y), module(X, y)
        torch.testing.assert_close(ours, theirs)
        for mine, other in zip(*(torch.autograd.grad(loss, inputs) for loss in (ours, theirs)), strict=True):
            torch.testing.assert_close(mine, other)
