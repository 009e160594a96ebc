"""A weight of 0 is an absent sample, also of the losses that ``cases`` does not have."""

import pytest
import torch
from cases import NAMES, assert_close, make_case

from robustdml_ops.losses import LanguageGuidanceLoss, SuperContrastiveLoss, SuperLoss

B = 13
BUILDS = {
    "language, forward": lambda: LanguageGuidanceLoss("forward", 1.0),
    "language, backward, each": lambda: LanguageGuidanceLoss("backward", None, reduction="none"),
    "super contrastive": lambda: SuperContrastiveLoss(0.3, 1.2, 0.2),
    "superloss": lambda: SuperLoss(0.5),
    "superloss, each": lambda: SuperLoss(0.5, reduction="none"),
}


def inputs(name):
    X, labels = torch.randn(B, 3, dtype=torch.float64), torch.arange(B) // 3
    if name.startswith("language"):
        return {"embeddings": X, "text_embeddings": torch.randn(B, 3, 4, dtype=torch.float64), "labels": labels}
    return {"embeddings": X, "labels": labels} if name == "super contrastive" else {"losses": X.square().sum(1)}


@pytest.mark.parametrize("name", BUILDS)
def test_a_weight_of_0_is_an_absent_sample(name):
    """In the loss, its gradients, and running means; the other weights multiply."""
    weights = torch.linspace(0.5, 2, B, dtype=torch.float64)
    weights[::3] = 0
    kept, whole = weights > 0, inputs(name)
    rest = {key: value[kept] for key, value in whole.items()}
    if name.startswith("superloss"):
        whole["losses"] = whole["losses"].masked_fill(~kept, torch.inf)
    results, modules = [], [BUILDS[name]() for _ in range(2)]
    for module, given, of_given in zip(modules, (whole, rest), (weights, weights[kept]), strict=True):
        first = next(iter(given))
        leaf, of_given = given[first].requires_grad_(), of_given.clone().requires_grad_()
        loss = module(**given | {first: leaf}, sample_weights=of_given)
        results.append([loss, *torch.autograd.grad(loss.sum(), (leaf, of_given))])
    (ours, dX, dw), (dropped, *gradients) = results
    if ours.dim():
        assert not ours[~kept].any()
        ours = ours[kept]
        alone = BUILDS[name]()(**rest)
        torch.testing.assert_close(ours, alone * weights[kept], rtol=1e-6, atol=1e-6)
    # Running means, and so the threshold of SuperLoss, are float32.
    torch.testing.assert_close(ours, dropped, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close([dX[kept], dw[kept]], gradients, rtol=1e-5, atol=1e-6)
    assert not dX[~kept].any()
    assert torch.isfinite(dw).all() or name.startswith("superloss")
    torch.testing.assert_close(*(dict(module.named_buffers()) for module in modules))


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


@pytest.mark.parametrize("name", [*NAMES, *BUILDS])
def test_truth_values_are_weights(name):
    """A verdict on the labels needs no conversion."""
    kept = torch.arange(B) % 4 > 0
    if name in BUILDS:
        losses = [BUILDS[name]()(**inputs(name), sample_weights=weights) for weights in both_types(kept)]
    else:
        losses = []
        for weights in both_types(kept):
            case = make_case(name, B, 5, 4)
            case.weights = weights
            losses.append(case.ours())
    assert torch.equal(*losses)


def both_types(kept):
    torch.manual_seed(0)
    yield kept
    torch.manual_seed(0)
    yield kept.double()
