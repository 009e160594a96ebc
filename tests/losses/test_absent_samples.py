"""A weight of 0 is an absent sample of every public loss."""

import pytest
import torch
from cases import ANY_PAIRS, PAIRS, assert_close, make_case

from robustdml_ops.losses import LanguageGuidanceLoss, NTXentLoss, ProxyAnchorLoss, SuperLoss
from robustdml_ops.ops import ABSENT
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


BANK, BANK_LABELS = random(5, 6, seed=1), torch.tensor([0, 1, 5, 2, 5])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ANY_PAIRS)
def test_rows_are_absent_whatever_the_type_of_labels(name, dtype):
    """Labelled ABSENT, beside labels of the batch of any type, or with the ignored label."""
    row = PAIRS[name]
    X, y, kept = random(B, 6), labels(), BANK_LABELS < 5
    expected = row.make(**row.settings)(X, y, ref_emb=BANK[kept], ref_labels=BANK_LABELS[kept])
    absent = BANK_LABELS.masked_fill(~kept, ABSENT)
    assert_close(row.make(**row.settings)(X, y.to(dtype), ref_emb=BANK, ref_labels=absent), expected)
    ignoring = row.make(**row.settings, ignore_index=5)
    assert_close(ignoring(X, y.to(dtype), ref_emb=BANK, ref_labels=BANK_LABELS.to(dtype)), expected)


def test_an_ignored_label_that_the_type_cannot_hold():
    """As uint8, −100 would be 156."""
    loss_function = ProxyAnchorLoss(200, 6, ignore_index=-100)
    y = torch.arange(B) + 150
    assert torch.equal(loss_function(random(B, 6), y.to(torch.uint8)), loss_function(random(B, 6), y))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"labels": labels().tolist()}, TypeError, "labels must be a torch.Tensor"),
        ({"sample_weights": [1.0] * B}, TypeError, "sample_weights must be a torch.Tensor"),
        ({"sample_weights": torch.ones(B - 1)}, ValueError, "sample_weights must be .* length 8"),
        ({"ref_labels": BANK_LABELS.tolist()}, TypeError, "ref_labels must be a torch.Tensor"),
    ],
)
def test_bad_input_beside_an_ignored_label(given, error, message):
    call = {"labels": labels(), "ref_emb": BANK, "ref_labels": BANK_LABELS} | given
    with pytest.raises(error, match=message):
        NTXentLoss(ignore_index=1)(random(B, 6), **call)


def test_listed_rows_without_labels_stay_where_samples_are_absent():
    pairs = torch.tensor([[0, 1], [1, 9], [0, 2], [2, 8]])
    call = {"ref_emb": random(10, 6, seed=1), "sample_weights": torch.arange(B) != 2}
    found = NTXentLoss()(random(B, 6), None, tuple(pairs), **call)
    kept = (*pairs[:2], *pairs[2:, :1])
    assert torch.equal(found, NTXentLoss()(random(B, 6), None, kept, call["ref_emb"]))
