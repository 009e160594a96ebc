"""What ProcSim adds to the step of the loss that it weighs, once the proxy losses are there."""

import pytest
import torch

from robustdml_ops import python_ref
from robustdml_ops.losses import MultiSimilarityLoss, ProcSimLoss

from .device import DEVICE

B, CLASSES = 256, 64


class GivenLosses(ProcSimLoss):
    """ProcSim on detector losses that another part of the step has made."""

    given: torch.Tensor

    def _detect(self, embeddings, labels, proxy_losses):
        return self.given


def workload(D):
    """Four samples a class, a fifth of them wrong: their proxy losses are higher."""
    torch.manual_seed(0)
    X = torch.randn(B, D, device=DEVICE, requires_grad=True)
    y = torch.arange(B, device=DEVICE) % CLASSES
    procsim = GivenLosses(CLASSES, D, lam=0.1, detector="multi-similarity").to(DEVICE)
    procsim.given = torch.rand(B, device=DEVICE) + 2 * (torch.rand(B, device=DEVICE) < 0.2)
    return X, y, procsim


def training_step(loss_function, X, y):
    X.grad = None
    loss = loss_function(X, y)
    loss.backward()
    return loss


@pytest.mark.parametrize("D", [128, 512])
def test_extras(timed, D):
    X, y, procsim = workload(D)
    plain = MultiSimilarityLoss()
    sigma = python_ref.confidence(procsim.given, python_ref.otsu_threshold(procsim.given), 0.1)
    each = python_ref.multi_similarity_loss(X.detach(), y, reduction="none")
    torch.testing.assert_close(training_step(procsim, X, y), (sigma * each).mean(), rtol=1e-5, atol=0)
    timed(
        lambda: training_step(procsim, X, y),
        lambda: training_step(plain, X, y),
        group=f"ProcSim's threshold, confidence and weights, B={B} D={D}; the floor is the multi-similarity step",
        contender="robustdml/procsim",
        rounds=300,
    )
