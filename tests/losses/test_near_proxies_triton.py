"""Gradients of bfloat16 proxies near their samples, by planned steps and by the general way of Triton's kernels."""

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.engine import similarity_chunks
from robustdml_ops.losses.families.metric_loss import ShardableLoss
from tests.losses import near_cases
from tests.losses.bfloat16_products import bfloat16_products
from tests.triton_here import DEVICE, MARKS

pytestmark = [*MARKS, pytest.mark.skipif(DEVICE.type == "cuda", reason="cuBLAS multiplies there: see bench.gpu")]
pytestmark.append(pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice|divide):RuntimeWarning"))
pytestmark.append(pytest.mark.filterwarnings("ignore:.*an optimiser that rounds to the nearest:UserWarning"))


@pytest.fixture(autouse=True)
def as_on_a_gpu():
    with bfloat16_products():
        yield


@pytest.mark.parametrize("way", ["general", "planned", "without terms"])
@pytest.mark.parametrize("noise", near_cases.NOISES)
@pytest.mark.parametrize("kind", [*near_cases.KINDS, *near_cases.BANKS])
def test_gradient_of_proxies_near_their_samples(kind, noise, way, monkeypatch):
    if way != "planned":
        monkeypatch.setattr(ShardableLoss, "_planned", lambda *_: None)
    if way == "without terms":
        monkeypatch.setattr(similarity_chunks, "saved_limit", 0)
    near_cases.assert_as_exact_as_rounding(kind, near_cases.NOISES[noise], backend="triton")


@pytest.mark.parametrize("way", ["general", "planned"])
def test_a_collapsed_batch_at_the_largest_scale(way, monkeypatch):
    """All logits are 64, and weights stand for more classes and samples: e⁻⁶⁴ · weight / C is next to 2⁻¹²⁶.

    The weights are powers of two, so that the digits are those of weights of 1.
    """
    if way == "general":
        monkeypatch.setattr(ShardableLoss, "_planned", lambda *_: None)
    X, y, P = near_cases.inputs(0.1)
    X, P = X[:1].expand_as(X).contiguous(), (X[:1] + P - X[: len(P)]).bfloat16()
    found = []
    for weight in (1.0, 2.0**-24):
        loss = losses.NormalizedSoftmaxLoss(len(P), P.shape[1], temperature=1 / 64, backend="triton").bfloat16()
        loss.W.data.copy_(P.t())
        loss(X, y, sample_weights=torch.full((len(X),), weight)).backward()
        found.append(loss.W.grad.double() / weight)
    torch.testing.assert_close(*found, rtol=0, atol=0)
