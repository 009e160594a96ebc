"""What a training loop does to a loss: scale, accumulate, freeze, run twice."""

import pytest
import torch
from cases import BANK_NAMES, MATRIX_NAMES, NAMES, make_case


@pytest.mark.parametrize("name", MATRIX_NAMES + BANK_NAMES)
def test_upstream_scale_and_a_second_backward(name):
    case = make_case(name, 12, 20 if name in MATRIX_NAMES else 4, 5)
    loss = case.ours()
    (3 * loss).backward(retain_graph=True)
    first = [tensor.grad.clone() for tensor in case.inputs]
    (3 * loss).backward(retain_graph=True)
    (3 * loss).backward()
    expected = torch.autograd.grad(3 * case.reference(), case.inputs)
    torch.testing.assert_close(first, [*expected], rtol=1e-9, atol=1e-12)
    thrice = [3 * truth for truth in expected]
    torch.testing.assert_close([tensor.grad for tensor in case.inputs], thrice, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["proxy-anchor", *BANK_NAMES])
def test_only_what_requires_a_gradient_gets_one(name):
    for k in (0, 1):
        case = make_case(name, 12, 4, 5)
        leaf, frozen = case.inputs[k], case.inputs[1 - k]
        frozen.requires_grad_(False)
        case.ours().backward()
        assert frozen.grad is None
        torch.testing.assert_close(leaf.grad, torch.autograd.grad(case.reference(), leaf)[0])


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_without_gradients(name):
    case = make_case(name, 9, 20, 5)
    with torch.no_grad():
        loss = case.ours()
    assert not loss.requires_grad
    torch.testing.assert_close(loss, case.reference().detach())


@pytest.mark.parametrize("name", ["proxy-anchor", "ms"])
def test_fp16_gradients_are_scaled_before_they_are_rounded(name):
    """With a GradScaler the loss is multiplied first; unscaled float16 gradients would have been flushed to zero."""
    case = make_case(name, *((8, 4, 16) if name == "ms" else (4, 3000, 64)), dtype=torch.float16)
    case.module.float()
    scaled = torch.autograd.grad(case.ours() * 1e-7 * 2.0**24, case.embeddings)[0]
    truth = torch.autograd.grad(case.reference(torch.float64) * 1e-7 * 2.0**24, case.embeddings)[0]
    torch.testing.assert_close(scaled, truth, rtol=1e-2, atol=1e-2 * float(truth.abs().max()))


@pytest.mark.parametrize("name", MATRIX_NAMES)
def test_autocast_keeps_the_loss_in_float32_and_the_parameter_as_it_is(name):
    case = make_case(name, 12, 40, 16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = case.ours()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, case.reference(), rtol=1e-3, atol=1e-4)
    loss.backward()
    assert case.parameter.dtype == case.parameter.grad.dtype == torch.float32
