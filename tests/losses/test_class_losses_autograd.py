"""The losses over classes in a training loop, and in the place of pytorch-metric-learning's."""

import pytest
import torch
from class_cases import NAMES, ClassCase
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.regularizers import SparseCentersRegularizer

from robustdml_ops.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)


@pytest.mark.parametrize("name", NAMES)
def test_upstream_scale_and_a_second_backward(name):
    case = ClassCase(name, 9, 20, 5)
    loss = case.ours()
    (3 * loss).backward(retain_graph=True)
    first = [tensor.grad.clone() for tensor in case.inputs]
    (3 * loss).backward()
    expected = torch.autograd.grad(3 * case.reference(), case.inputs)
    for once, tensor, truth in zip(first, case.inputs, expected, strict=True):
        torch.testing.assert_close(once, truth, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(tensor.grad, 2 * truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_keeps_the_loss_in_float32_and_the_parameter_as_it_is(name):
    case = ClassCase(name, 12, 40, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = case.ours()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, case.reference(), rtol=1e-4, atol=1e-4)
    loss.backward()
    assert case.parameter.dtype == case.parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_without_a_graph_break(name, reduction):
    case, plain = (
        ClassCase(name, 12, 40, 16, dtype=torch.float32, reduction=reduction, weighted=True) for _ in range(2)
    )
    torch._dynamo.reset()
    case.module.forward = torch.compile(case.module.forward, fullgraph=True, backend="aot_eager")
    ours, theirs = case.ours(), plain.ours()
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(case.gradients(ours), plain.gradients(theirs), strict=True):
        torch.testing.assert_close(mine, other)


REGULARIZER = SparseCentersRegularizer(30, 4)
PEERS = {
    "proxy-nca": (ProxyNCALoss(30, 12), pml.ProxyNCALoss(30, 12)),
    "proxy-nca scaled": (ProxyNCALoss(30, 12, softmax_scale=9), pml.ProxyNCALoss(30, 12, softmax_scale=9)),
    "normalized-softmax": (NormalizedSoftmaxLoss(30, 12), pml.NormalizedSoftmaxLoss(30, 12)),
    "soft-triple": (SoftTripleLoss(30, 12), pml.SoftTripleLoss(30, 12)),
    "cosface": (CosFaceLoss(30, 12), pml.CosFaceLoss(30, 12)),
    "cosface settings": (CosFaceLoss(30, 12, 0.1, 9), pml.CosFaceLoss(30, 12, margin=0.1, scale=9)),
    "arcface": (ArcFaceLoss(30, 12), pml.ArcFaceLoss(30, 12)),
    "arcface settings": (ArcFaceLoss(30, 12, 90, 9), pml.ArcFaceLoss(30, 12, 90, 9)),
    "arcface, half a turn and more": (ArcFaceLoss(30, 12, 200, 9), pml.ArcFaceLoss(30, 12, 200, 9)),
    "arcface, a negative margin": (ArcFaceLoss(30, 12, -20, 9), pml.ArcFaceLoss(30, 12, -20, 9)),
    "subcenter-arcface": (
        SubCenterArcFaceLoss(30, 12),
        pml.SubCenterArcFaceLoss(num_classes=30, embedding_size=12),
    ),
    "subcenter-arcface settings": (
        SubCenterArcFaceLoss(30, 12, 40, 9, 5),
        pml.SubCenterArcFaceLoss(num_classes=30, embedding_size=12, margin=40, scale=9, sub_centers=5),
    ),
    "soft-triple settings": (
        SoftTripleLoss(30, 12, 4, 10, 0.3, 0.2, regularizer_weight=0.2),
        pml.SoftTripleLoss(30, 12, 4, 10, 0.3, 0.2, weight_regularizer=REGULARIZER, weight_reg_weight=0.2),
    ),
}


@pytest.mark.parametrize("peer", PEERS)
def test_takes_the_place_of_pytorch_metric_learning(peer):
    """Same constructor, state_dict, values, gradients and logits."""
    ours, theirs = (module.double() for module in PEERS[peer])
    ours.load_state_dict(theirs.state_dict())
    torch.manual_seed(0)
    embeddings, labels = torch.randn(17, 12, dtype=torch.float64, requires_grad=True), torch.randint(30, (17,))
    results = []
    for loss_function in (ours, theirs):
        loss = loss_function(embeddings, labels)
        parameter = next(iter(loss_function.parameters()))
        gradients = torch.autograd.grad(loss, (embeddings, parameter))
        results.append([loss, *gradients, loss_function.get_logits(embeddings)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)
    theirs.load_state_dict(ours.state_dict())


def test_the_least_likely_sample_is_not_dropped():
    """Its probability is 0 in float32; pytorch-metric-learning's mean is over the other sample alone."""
    X = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    settings = {"num_classes": 2, "embedding_size": 2, "softmax_scale": 30}
    ours, theirs = ProxyNCALoss(**settings), pml.ProxyNCALoss(**settings)
    for loss_function in (ours, theirs):
        loss_function.proxies.data = X.clone()
    labels = torch.tensor([0, 0])
    torch.testing.assert_close(ours(X, labels), torch.tensor(60.0))  # (0 + 120) / 2
    assert theirs(X, labels) == 0
