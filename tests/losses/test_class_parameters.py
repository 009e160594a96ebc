"""W of softmax losses and fc of SoftTriple lie in memory as pytorch-metric-learning's: (D, C) and (D, C·H)."""

import copy
from functools import partial
from importlib import import_module

import pytest
import torch
from pytorch_metric_learning import losses as pml
from torch import nn
from torch.nn.utils import prune

from robustdml_ops.engine.similarity_chunks import gradient_buffer
from robustdml_ops.losses import NormalizedSoftmaxLoss, SoftTripleLoss, SubCenterArcFaceLoss, load_class_matrix
from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_loss, class_lse, similarity
from robustdml_ops.optim import ProxyAdamW, grow_classes

C, D, B = 23, 16, 12
LOSSES = {
    "normalized-softmax": (NormalizedSoftmaxLoss, pml.NormalizedSoftmaxLoss),
    "soft-triple": (SoftTripleLoss, pml.SoftTripleLoss),
    "subcenter-arcface": (SubCenterArcFaceLoss, pml.SubCenterArcFaceLoss),
}


def batches(steps):
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(B, D, generator=generator), torch.randint(C, (B,), generator=generator)) for _ in range(steps)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", ["class_lse", "pooled", "anchor_loss", "similarity"])
def test_gradient_that_the_sweep_wrote_becomes_grad(op, dtype, backend, small_chunks, monkeypatch):
    """Without a copy, in the parameter's layout; and it is that of rows side by side."""
    written = []

    def watched(proxies):
        room = gradient_buffer(proxies)
        written.append(room.data_ptr())  # not the tensor: PyTorch copies what another holds
        return room

    for module in ("engine.similarity_chunks", "ops.similarity.autograd"):
        monkeypatch.setattr(import_module(f"robustdml_ops.{module}"), "gradient_buffer", watched)
    W = torch.randn(D, 24).to(dtype).requires_grad_()
    rows = W.detach().t().contiguous().requires_grad_()
    X, y = torch.randn(B, D), torch.randint(8, (B,))
    for leaf, proxies in ((W, W.t()), (rows, rows)):
        if op == "class_lse":
            value = class_lse(X, proxies, y, scale=8.0, backend=backend).lse
        elif op == "pooled":
            value = class_lse(X, proxies.view(8, 3, D), y, scale=8.0, pooling="max", backend=backend).lse
        elif op == "anchor_loss":
            zeros, one = torch.zeros(B), torch.ones(())
            biases = AnchorBiases(zeros, zeros)
            value = anchor_loss(X, proxies, LabelSets.of(y), biases, one, one, alpha=8.0, backend=backend)
        else:
            value = similarity(X, proxies, backend=backend).square()
        value.sum().backward()
        assert leaf.grad.is_contiguous()
        assert leaf.grad.data_ptr() == written[-1]
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(W.grad.t(), rows.grad, rtol=tolerance, atol=8 * tolerance)


@pytest.mark.parametrize(("ours", "theirs"), LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("fused", [True, False])
def test_optimiser_resumed_from_the_peers_checkpoint_goes_on_as_the_peers(ours, theirs, fused):
    mine, other = ours(C, D), theirs(num_classes=C, embedding_size=D)
    optimizers = [torch.optim.Adam(loss.parameters(), 1e-2, fused=fused) for loss in (mine, other)]

    def train(loss_function, optimizer, steps):
        for X, y in steps:
            optimizer.zero_grad()
            loss_function(X, y).backward()
            optimizer.step()

    train(other, optimizers[1], batches(20))
    mine.load_state_dict(other.state_dict())
    optimizers[0].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    for loss_function, optimizer in zip((mine, other), optimizers, strict=True):
        train(loss_function, optimizer, batches(40)[20:])
    torch.testing.assert_close([*mine.parameters()], [*other.parameters()], rtol=1e-4, atol=1e-5)


COMPUTED = {
    "weight norm": nn.utils.parametrizations.weight_norm,
    "weight norm by a hook": nn.utils.weight_norm,
    "pruning": partial(prune.l1_unstructured, amount=0.3),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("compute", COMPUTED.values(), ids=COMPUTED)
def test_a_matrix_that_is_computed_trains_as_the_peers_and_is_not_written_over(compute):
    mine, other = NormalizedSoftmaxLoss(C, D), pml.NormalizedSoftmaxLoss(C, D)
    other.load_state_dict(mine.state_dict())
    for loss_function in (mine, other):
        compute(loss_function, "W")
        optimizer = torch.optim.SGD(loss_function.parameters(), 0.1)
        for X, y in batches(3):
            optimizer.zero_grad()
            loss_function(X, y).backward()
            optimizer.step()
    torch.testing.assert_close([*mine.parameters()], [*other.parameters()], rtol=1e-4, atol=1e-5)
    grown = partial(grow_classes, optimizer=None, classes=C + 1)
    for call in (partial(load_class_matrix, source=torch.ones(C, D)), grown, ProxyAdamW):
        with pytest.raises(TypeError, match=r"\.W of \w+ is not its own tensor: weight_norm"):
            call(mine)
