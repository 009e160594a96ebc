"""What a step within the sweep can't do ends with a sentence, and writes nothing that it should not."""

import copy
import gc
import math
from functools import partial

import pytest
import torch

from robustdml_ops.losses import (
    MultiSimilarityLoss,
    NormalizedSoftmaxLoss,
    ProcSimLoss,
    ProxyAnchorLoss,
    SoftTripleLoss,
)
from robustdml_ops.ops import class_lse
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, ProxySGD, grow_classes

KINDS = [ProxyAnchorLoss, NormalizedSoftmaxLoss]
B, C, D = 12, 45, 5


def batch():
    return torch.randn(B, D, requires_grad=True), torch.randint(C, (B,))


def bound(kind=ProxyAnchorLoss, rule=ProxyAdamW, **settings):
    """A loss, its optimiser, and its proxies."""
    loss = kind(C, D)
    return loss, rule(loss, **settings), next(loss.parameters())


@pytest.mark.parametrize(
    ("kind", "steps", "sentence"),
    [
        (ProxyAnchorLoss, "step", r"without an update.*once after each loss\.backward\(\)"),
        (ProxyAnchorLoss, "loss step", r"before backward.*abandon\(\)"),
        (ProxyAnchorLoss, "loss loss", r"give up a batch that failed with abandon\(\)"),
        (ProxyAnchorLoss, "loss backward step step", "without an update"),
        (ProxyAnchorLoss, "freeze loss backward step", r"frozen \(requires_grad=False\).*Leave out step\(\)"),
        (ProxyAnchorLoss, "loss backward loss", r"updated since the last step\(\).*larger batch"),
        (NormalizedSoftmaxLoss, "loss backward loss backward", r"updated since the last step\(\).*larger batch"),
        (ProxyAnchorLoss, "loss backward step backward", "second backward"),
        (NormalizedSoftmaxLoss, "loss backward step backward", "call backward once"),
        (NormalizedSoftmaxLoss, "loss change backward", "updated since this loss was computed"),
    ],
)
def test_wrong_orders_are_refused_and_change_nothing(kind, steps, sentence):
    loss, optimizer, P = bound(kind)
    values = []
    actions = {
        "loss": lambda: values.append(loss(*batch())),
        "backward": lambda: values[-1].backward(retain_graph=True),
        "step": optimizer.step,
        "freeze": lambda: P.requires_grad_(False),
        "change": lambda: P.detach().mul_(2),
    }
    *before, last = steps.split()
    for name in before:
        actions[name]()
    kept = P.detach().clone()
    with pytest.raises(RuntimeError, match=sentence):
        actions[last]()
    assert torch.equal(P, kept)
    # The way out.
    P.requires_grad_(True)
    optimizer.abandon()
    for name in ("loss", "backward", "step"):
        actions[name]()
    assert not torch.equal(P, kept)


def test_two_losses_over_one_parameter():
    """Each alone is right, both in one step are refused; and both belong to one optimiser."""
    loss, optimizer, P = bound()
    other = NormalizedSoftmaxLoss(C, D)
    shared = ProxyAnchorLoss(C, D)
    shared.proxies = P
    with pytest.raises(RuntimeError, match=r"second loss on the same proxies"):
        loss(*batch()) + shared(*batch())
    with pytest.raises(ValueError, match=r"belong to ProxyAdamW already"):
        ProxySGD(shared)
    ProxySGD(other)
    del optimizer
    gc.collect()
    ProxySGD(shared)


@pytest.mark.parametrize("foreach", [True, False])
def test_clipping_by_a_norm_over_all_is_refused(foreach):
    loss, optimizer, P = bound()
    X, labels = batch()
    loss(X, labels).backward()
    with pytest.raises(RuntimeError, match=r"no such gradient exists"):
        torch.nn.utils.clip_grad_norm_([X, P], 1.0, foreach=foreach)
    torch.nn.utils.clip_grad_norm_([X], 1.0)
    optimizer.step()
    assert P.grad is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("closure", [False, True])
def test_another_optimiser_that_has_the_proxies(kind, closure):
    loss, optimizer, P = bound(kind)
    other = torch.optim.AdamW([P], lr=0.1)

    def backward():
        loss(*batch()).backward()

    if not closure:
        backward()
    with pytest.raises(RuntimeError, match=r"no such gradient exists.* of other optimisers"):
        other.step(backward if closure else None)
    optimizer.step()
    before = P.detach().clone()
    other.step()  # the proxies have no gradient now
    assert torch.equal(P, before)


def test_a_gradient_from_elsewhere():
    loss, optimizer, P = bound()
    value = loss(*batch())
    with pytest.raises(RuntimeError, match=r"no such gradient exists|did not come from a sweep"):
        (value + P.square().sum()).backward()
    optimizer.zero_grad()
    optimizer.abandon()
    loss.eval()
    loss(*batch()).backward()
    with pytest.raises(RuntimeError, match=r"did not come from a sweep that updates them.*eval"):
        optimizer.step()
    optimizer.zero_grad()
    loss.train()
    loss(*batch()).backward()
    optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_no_update_without_gradients_in_eval_mode_or_of_a_copy(kind):
    loss, _optimizer, P = bound(kind)
    before = P.detach().clone()
    with torch.no_grad():
        loss(*batch())
    twin = copy.deepcopy(loss)
    twin(*batch()).backward()
    assert next(twin.parameters()).grad is not None
    loss.eval()
    loss(*batch()).backward()
    assert torch.equal(P, before)
    assert P.grad.shape == P.shape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("factor", "message"),
    [(0.5, r"is 0\.5.*takes 1: give it the loss scaler"), (65536.0, "is 65536.*loss scaler that multiplies")],
)
def test_another_scale_is_refused(kind, factor, message):
    """A loss scaler's is for the network to take away again; a step with it would be 65,536 times too far."""
    loss, optimizer, P = bound(kind, ProxySGD, lr=0.1)
    before = P.detach().clone()
    with pytest.raises(RuntimeError, match=f"gradient of the loss {message}"):
        (factor * loss(*batch())).backward()
    assert (P - before).abs().max() < 1
    assert kind is ProxyAnchorLoss or torch.equal(P, before)
    optimizer.abandon()


@pytest.mark.parametrize("kind", KINDS)
def test_the_scale_is_set_before_each_loss(kind):
    loss, optimizer, P = bound(kind, ProxySGD, lr=1.0)
    twin = copy.deepcopy(loss)
    (Q,) = twin.parameters()
    for factor in (0.5, 0.25):
        X, labels = batch()
        Y = X.detach().clone().requires_grad_()
        with torch.no_grad():
            Q.copy_(P)
        optimizer.scale = factor
        (factor * loss(X, labels)).backward()
        optimizer.step()
        twin.zero_grad()
        (factor * twin(Y, labels)).backward()
        torch.testing.assert_close(P, Q - Q.grad)
        torch.testing.assert_close(X.grad, Y.grad)


def test_sums_that_come_one_by_one():
    loss = ProxyAnchorLoss(C, D, reduction="none")
    _optimizer = ProxyAdamW(loss)
    with pytest.raises(RuntimeError, match=r"reduction='none'.*take reduction='mean'"):
        loss(*batch())
    softmax = NormalizedSoftmaxLoss(C, D, reduction="none")
    optimizer, X_and_labels, twin = ProxySGD(softmax, lr=1.0), batch(), copy.deepcopy(softmax)
    weights = torch.rand(B)
    (softmax(*X_and_labels) * weights).sum().backward()
    optimizer.step()
    before = twin.W.detach().clone()
    (twin(*X_and_labels) * weights).sum().backward()
    torch.testing.assert_close(softmax.W, before - twin.W.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_are_refused_and_transforms_update_nothing(kind):
    loss, optimizer, P = bound(kind)
    X, labels = batch()
    before = P.detach().clone()
    with pytest.raises(RuntimeError, match=r"create_graph=True can't update"):
        torch.autograd.grad(loss(X, labels), X, create_graph=True)
    optimizer.abandon()
    now = P.detach().clone()
    gradient = torch.func.grad(lambda X: loss(X, labels))(X.detach())
    assert torch.equal(P, now)
    loss.eval()
    torch.testing.assert_close(gradient, torch.autograd.grad(loss(X, labels), X)[0])
    assert kind is ProxyAnchorLoss or torch.equal(P, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("where", "value"),
    [("embeddings", math.nan), ("proxies", math.inf), ("weights", math.nan), ("upstream", math.inf)],
)
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_nothing_is_written_of_what_is_not_finite(kind, backend, where, value, share):
    loss = kind(C, D, backend=backend, negative_share=share)
    optimizer, P = ProxyAdamW(loss), next(loss.parameters())
    loss(*batch()).backward()
    optimizer.step()
    X, labels = batch()
    weights = torch.ones(B)
    if where == "embeddings":
        X = X.detach().index_fill(0, torch.tensor([3]), value)
    if where == "proxies":
        with torch.no_grad():
            P.fill_(value)  # whatever is drawn
    if where == "weights":
        weights[2] = value
    before, state = P.detach().clone(), copy.deepcopy(optimizer.state[P])
    if where == "upstream" and kind is ProxyAnchorLoss:
        pytest.skip("it has stepped in forward")
    with pytest.raises(ValueError, match=r"NaN or inf|finite"):
        (loss(X, labels, sample_weights=weights) * (value if where == "upstream" else 1.0)).backward()
    torch.testing.assert_close(P.detach(), before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(optimizer.state[P], state, rtol=0, atol=0)


def test_a_short_proxy_is_told_before_anything_is_written(backend):
    loss = ProxyAnchorLoss(C, D, backend=backend)
    with torch.no_grad():
        loss.proxies[0] = 0  # a zero row has no gradient
        loss.proxies[7] = 1e-20
    optimizer, before = ProxyAdamW(loss), loss.proxies.detach().clone()
    with pytest.raises(ValueError, match=r"proxies\[7\] is of length 2\.2e-20: scale it up"):
        loss(*batch())
    assert torch.equal(loss.proxies, before)
    assert int(optimizer.state[loss.proxies]["step"]) == 0


def test_a_gradient_that_overflows_leaves_its_chunk(small_chunks, backend):
    """Logits of 1e38 and an upstream of as much: what no look at the inputs can tell."""
    P, X = torch.nn.Parameter(torch.randn(C, D)), torch.randn(B, D)
    loss = NormalizedSoftmaxLoss(D, C)  # whose parameter (C, D) is the matrix here, by rows
    loss.W = torch.nn.Parameter(P.detach().t().clone().t().contiguous().t())
    _optimizer = ProxySGD(loss, lr=0.1)
    before, labels = loss.W.detach().clone(), torch.randint(C, (B,))
    lse = class_lse(X, loss.W.t(), labels, scale=1e5, update=loss._update(), backend=backend)
    with pytest.raises(ValueError, match=r"chunk of rows was left as it is"):
        ((lse.lse - lse.target) * 1e36).sum().backward()
    assert torch.isfinite(loss.W).all()
    assert (before == loss.W).all(0).any()


def test_what_is_moved_after_the_optimiser_was_made():
    loss, _optimizer, _ = bound()
    loss.double()
    with pytest.raises(RuntimeError, match=r"float64.*exp_avg is torch\.float32.*make the optimiser after"):
        loss(torch.randn(B, D).double(), torch.randint(C, (B,)))


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D).proxies), TypeError, "pass the loss, not its parameters"),
        (lambda: ProxyAdamW(ProcSimLoss(C, D)), TypeError, r"got ProcSimLoss: pass its \.proxy_nca"),
        (lambda: ProxyAdamW(MultiSimilarityLoss()), TypeError, "losses of this package that have proxies"),
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D).half()), TypeError, r"call ProxyAnchorLoss.bfloat16\(\)"),
        (lambda: ProxyAdamW(SoftTripleLoss(C, D, regularizer_weight=0.2)), ValueError, "regularizer_weight of Soft"),
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D), lr=-1.0), ValueError, "lr must be finite and not negative, got -1"),
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D), lr=math.nan), ValueError, "lr must be finite"),
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D), betas=(0.9, 1.0)), ValueError, r"betas\[1\] must be in \[0, 1\)"),
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D), scale=0.0), ValueError, "scale must be positive"),
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D), moments=torch.float16), ValueError, "moments=torch.float16"),
        (lambda: ProxyAdamW(ProxyAnchorLoss(C, D), seed=-1), ValueError, "seed must be an integer"),
        (lambda: ProxySGD(ProxyAnchorLoss(C, D), nesterov=True), ValueError, "nesterov=True needs a momentum"),
        (lambda: ProxyAdagrad(ProxyAnchorLoss(C, D), eps=0.0), ValueError, "eps must be above 0"),
        (lambda: copy.deepcopy(bound()[1]), TypeError, r"save its state_dict\(\)"),
        *(
            (partial(bound, **{name: True}), TypeError, f"ProxyAdamW has no {name}: .* Leave the argument out")
            for name in ("foreach", "fused", "amsgrad", "maximize")
        ),
    ],
)
def test_bad_arguments(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()


def test_a_checkpoint_of_other_sizes_changes_nothing():
    _, optimizer, P = bound()
    state = copy.deepcopy(optimizer.state[P])
    other = ProxyAnchorLoss(C + 1, D)
    with pytest.raises(ValueError, match=r"exp_avg to load is of shape \(46, 5\).*Nothing has been loaded"):
        optimizer.load_state_dict(ProxyAdamW(other).state_dict())
    torch.testing.assert_close(optimizer.state[P], state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("other", "settings", "named"),
    [
        (torch.optim.AdamW, {"amsgrad": True}, "amsgrad=True"),
        (torch.optim.AdamW, {"maximize": True}, "maximize=True"),
        (torch.optim.SGD, {}, "no betas, no eps"),
    ],
)
def test_a_state_of_what_it_does_not_compute(other, settings, named):
    _, optimizer, P = bound()
    saved = other([P], lr=0.1, **settings)
    P.grad = torch.zeros_like(P)
    saved.step()
    with pytest.raises(ValueError, match=f"has {named}: it is of an optimiser that ProxyAdamW does not compute"):
        optimizer.load_state_dict(saved.state_dict())
    assert optimizer.param_groups[0]["lr"] == 1e-3


def test_a_loss_that_is_refused_draws_nothing():
    loss = ProxyAnchorLoss(C, D, negative_share=0.2)
    optimizer = ProxyAdamW(loss)
    loss(*batch()).backward()
    with pytest.raises(RuntimeError, match=r"updated since the last step\(\)"):
        loss(*batch())
    optimizer.step()
    assert loss.negatives.state.tolist() == [0, 1]


def test_classes_that_grow_before_backward():
    loss, optimizer, P = bound(NormalizedSoftmaxLoss)
    value, kept = loss(*batch()), P.detach().clone()
    grow_classes(loss, optimizer, C + 1)
    with pytest.raises(RuntimeError, match=r"as after grow_classes.*call backward before"):
        value.backward()
    assert torch.equal(P, kept)


def test_a_loss_under_the_compiler_is_told_at_step():
    """Its graph has the gradient of all proxies, and nobody updates them in secret."""
    loss, optimizer, P = bound()
    X, labels = batch()
    torch.compile(loss, backend="aot_eager")(X, labels).backward()
    assert P.grad.shape == P.shape
    with pytest.raises(RuntimeError, match=r"one under torch\.compile"):
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_recorded_is_refused(kind, monkeypatch):
    """A graph would repeat it with the number of the step that was recorded. Here no stream can say that it records."""
    loss, optimizer, P = bound(kind)
    before = P.detach().clone()
    with monkeypatch.context() as patched:
        patched.setattr("robustdml_ops.optim.step.is_recorded", lambda device: device == P.device)
        with pytest.raises(RuntimeError, match=r"a CUDA graph is being recorded.*record the network alone"):
            loss(*batch()).backward()
    assert torch.equal(P, before)
    loss(*batch()).backward()
    optimizer.step()
