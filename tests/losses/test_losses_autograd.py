"""What a training loop does to a loss: scale, accumulate, freeze, run twice, compile, save."""

import pytest
import torch
from cases import NAMES, Case
from pytorch_metric_learning import losses as pml

from robustdml_ops.losses import ProxyAnchorLoss


@pytest.mark.parametrize("name", NAMES)
def test_upstream_scale_and_a_second_backward(name):
    case = Case(name, 9, 20, 5)
    loss = case.ours()
    (3 * loss).backward(retain_graph=True)
    first = [tensor.grad.clone() for tensor in case.inputs]
    (3 * loss).backward(retain_graph=True)
    (3 * loss).backward()
    expected = torch.autograd.grad(3 * case.reference(), case.inputs)
    for once, tensor, truth in zip(first, case.inputs, expected, strict=True):
        torch.testing.assert_close(once, truth, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(tensor.grad, 3 * truth, rtol=1e-9, atol=1e-12)


def test_only_what_requires_a_gradient_gets_one():
    case = Case("proxy-anchor", 9, 20, 5)
    case.module.proxies.requires_grad_(False)
    case.ours().backward()
    assert case.module.proxies.grad is None
    truth = torch.autograd.grad(case.reference(), case.embeddings)[0]
    torch.testing.assert_close(case.embeddings.grad, truth)

    case = Case("proxy-anchor", 9, 20, 5)
    case.embeddings = case.embeddings.detach()
    case.ours().backward()
    assert case.embeddings.grad is None
    torch.testing.assert_close(case.module.proxies.grad, torch.autograd.grad(case.reference(), case.module.proxies)[0])


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_without_gradients(name):
    case = Case(name, 9, 20, 5)
    with torch.no_grad():
        loss = case.ours()
    assert not loss.requires_grad
    torch.testing.assert_close(loss, case.reference().detach())


def test_proxies_gradient_is_not_copied():
    """The C×D gradient that the sweep wrote becomes .grad itself: a copy would double the largest buffer there is."""
    written = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape == (5000, 8) and func is torch.ops.aten.new_empty.default:
                written.append(out.data_ptr())
            return out

    case = Case("proxy-anchor", 9, 5000, 8, dtype=torch.float32)
    with Watch():
        loss = case.ours()
    loss.backward()
    assert case.module.proxies.grad.data_ptr() in written


def test_fp16_gradients_are_scaled_before_they_are_rounded():
    """With a GradScaler the loss is multiplied first; unscaled float16 gradients would have been flushed to zero."""
    case = Case("proxy-anchor", 4, 3000, 64, dtype=torch.float16)
    case.module.float()
    scaled = torch.autograd.grad(case.ours() * 1e-7 * 2.0**24, case.embeddings)[0]
    truth = torch.autograd.grad(case.reference(torch.float64) * 1e-7 * 2.0**24, case.embeddings)[0]
    torch.testing.assert_close(scaled, truth, rtol=1e-2, atol=1e-2 * float(truth.abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_keeps_the_loss_in_float32_and_the_proxies_as_they_are(name):
    case = Case(name, 12, 40, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = case.ours()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, case.reference(), rtol=1e-4, atol=1e-4)
    loss.backward()
    assert case.module.proxies.dtype == case.module.proxies.grad.dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_without_a_graph_break(name, reduction):
    case, plain = (Case(name, 12, 40, 16, dtype=torch.float32, reduction=reduction, weighted=True) for _ in range(2))
    torch._dynamo.reset()
    case.module = torch.compile(case.module, fullgraph=True, backend="aot_eager")
    ours, theirs = case.ours(), plain.ours()
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(case.gradients(ours), plain.gradients(theirs), strict=True):
        torch.testing.assert_close(mine, other)


def test_takes_the_place_of_pytorch_metric_learning():
    """Same constructor, state_dict, values and gradients."""
    torch.manual_seed(0)
    theirs = pml.ProxyAnchorLoss(30, 12, margin=0.2, alpha=20).double()
    ours = ProxyAnchorLoss(30, 12, margin=0.2, alpha=20).double()
    ours.load_state_dict(theirs.state_dict())
    embeddings, labels = torch.randn(17, 12, dtype=torch.float64, requires_grad=True), torch.randint(30, (17,))
    results = []
    for loss_function in (ours, theirs):
        loss = loss_function(embeddings, labels)
        gradients = torch.autograd.grad(loss, (embeddings, loss_function.proxies))
        results.append([loss, *gradients, loss_function.get_logits(embeddings)])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
