"""A weight of 0 is an absent sample of every public loss."""

import pytest
import torch
from cases import assert_close, make_case

from robustdml_ops.losses import LanguageGuidanceLoss, SuperLoss
from tests.every_call import LOSSES, B, labels, of_loss, random

texts = LOSSES["LanguageGuidanceLoss"].inputs
CALLS = {name: call for name, call in LOSSES.items() if name not in ("BSPMLLoss", "ProcSimLoss")}  # see below; its own
CALLS["LanguageGuidanceLoss, shifted"] = of_loss(
    lambda: LanguageGuidanceLoss("backward", 1.0), lambda: texts() | {"labels": labels()}
)
CALLS["SuperLoss, constant"] = of_loss(
    lambda: SuperLoss(0.5, 0.5), lambda: {"losses": random(B).abs()}, differentiable=("losses",)
)


def made(name, reduction):
    torch.manual_seed(0)
    module = CALLS[name].make()
    module.reduction = reduction
    return module


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", CALLS)
def test_a_weight_of_0_is_an_absent_sample(name, reduction):
    """In the loss, its gradients, and running means; the other weights multiply."""
    call, weights = CALLS[name], torch.linspace(0.5, 2, B, dtype=torch.float64)
    weights[::3] = 0
    kept, whole = weights > 0, call.inputs()
    rest = {key: value[kept] for key, value in whole.items()}
    if "losses" in whole:
        whole["losses"] = whole["losses"].masked_fill(~kept, torch.inf)
    results, modules = [], [made(name, reduction) for _ in range(2)]
    for module, inputs, given in zip(modules, (whole, rest), (weights, weights[kept]), strict=True):
        leaves = [inputs[key].requires_grad_() for key in call.differentiable]
        if name not in ("InfoNCELoss", "SigmoidLoss"):  # of which weights are constants
            leaves.append(given.clone().requires_grad_())
            given = leaves[-1]
        loss = module(**inputs, sample_weights=given)
        results.append([loss, *torch.autograd.grad(loss.sum(), [*leaves, *module.parameters()])])
    by_sample = results[0][0].shape == (B,)
    if by_sample:
        assert not results[0][0][~kept].any()
        if "Guidance" in name or "losses" in whole:
            torch.testing.assert_close(results[1][0], made(name, reduction)(**rest) * weights[kept])
    for place, (found, expected) in enumerate(zip(*results, strict=True)):
        of_rows = len(call.differentiable) >= place > 0
        assert not of_rows or not found[~kept].any()
        found = found[kept] if found.shape != expected.shape else found
        # Running means, and so the threshold of SuperLoss, are float32.
        tolerance = 1e-5 if name.startswith("Super") else 1e-9
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*(dict(module.named_buffers()) for module in modules))
    truth = [made(name, reduction)(**call.inputs(), sample_weights=given) for given in (kept, kept.double())]
    assert torch.equal(*truth)


def test_bspml_may_leave_zero_weights_out_altogether():
    """Weights are constants there."""
    whole, kept_alone = (make_case("bspml", 24, 4, 6, reduction="none") for _ in range(2))
    kept = torch.arange(24) % 3 > 0
    whole.weights = kept.double()
    kept_alone.keep(kept)
    whole.weights.requires_grad_()
    as_printed, whole.module.exclude_zero_weights = whole.ours(), True
    ours, theirs = whole.ours(), kept_alone.ours()
    assert_close(ours[kept], theirs)
    (gradient,), (expected,) = (
        torch.autograd.grad(loss.sum(), case.embeddings) for loss, case in ((ours, whole), (theirs, kept_alone))
    )
    assert_close(gradient[kept], expected)
    assert ((as_printed - ours).abs() > 1e-3).any()
    assert not as_printed[~kept].any() and not ours[~kept].any()
    as_printed.sum().backward()
    assert whole.weights.grad is None
