"""Recorded steps, with CUDA graphs as the CPU emulates them: the loss's own values, and gradients that stay."""

import gc
import warnings
import weakref

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.losses import recorded_step
from robustdml_ops.optim import ProxyAdamW
from tests.emulated_graphs import emulated_graphs
from tests.every_call import LOSSES

B, C, D = 8, 5, 6
# One has no embeddings; near pairs of others are listed by the host.
NOT = {"SuperLoss", "ContrastiveLoss", "SuperContrastiveLoss"}

ON_CUDA = recorded_step._records


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    monkeypatch.setenv("ROBUSTDML_BACKEND", "eager")  # whose operations the emulation sees
    with emulated_graphs() as modes:
        yield modes


def batch(seed, rows=B, **options):
    random = torch.Generator().manual_seed(seed)
    X = torch.randn(rows, D, generator=random, **options)
    return X.requires_grad_(), torch.randint(C, (rows,), generator=random)


def anchors(**options):
    torch.manual_seed(3)
    return losses.ProxyAnchorLoss(C, D, **options)


@pytest.mark.parametrize("name", sorted(LOSSES.keys() - NOT))
def test_values_and_gradients_are_those_of_the_loss(name):
    call = LOSSES[name]
    torch.manual_seed(1)
    loss, inputs = call.make(), call.inputs()
    for key in call.differentiable:
        inputs[key].requires_grad_()
    buffers = [buffer.clone() for buffer in loss.buffers()]
    step = loss.recorded(**inputs)
    assert all(map(torch.equal, buffers, loss.buffers()))
    for factor in (1.0, -3.0, 0.5):
        with torch.no_grad():
            changed = {key: value * factor if key in call.differentiable else value for key, value in inputs.items()}
        found = []
        for function in (step, loss):
            mine = {k: v.clone().requires_grad_() if k in call.differentiable else v for k, v in changed.items()}
            loss.zero_grad()
            value = function(**mine)
            value.sum().mul(factor).backward()
            found.append([value.detach(), *(mine[k].grad for k in call.differentiable)])
            found[-1] += [parameter.grad for parameter in loss.parameters()]
        torch.testing.assert_close(*found, rtol=0, atol=0)
    assert step.graphs is not None


def test_gradients_are_the_callers_own(graphs):
    loss, other = anchors(), anchors()
    step = loss.recorded(*batch(0))
    kept = []
    for seed in range(3):  # accumulated, as .grad is not cleared
        for function in (step, other):
            X, y = batch(seed)
            value = function(X, y)
            value.backward()
            kept.append((value, X.grad))
    torch.testing.assert_close(loss.proxies.grad, other.proxies.grad, rtol=0, atol=1e-6)
    for mine, theirs in zip(kept[::2], kept[1::2], strict=True):  # later replays change neither value nor gradient
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert set(graphs) == {"thread_local"}


def test_weights_and_the_same_tensor_twice():
    loss = losses.MultiSimilarityLoss()
    X, y = batch(0)
    w = torch.rand(B)
    step = loss.recorded(X, y, ref_emb=X, ref_labels=y, sample_weights=w)
    found = []
    for function in (step, loss):
        X, y = batch(1)
        found.append(torch.autograd.grad(function(X, y, ref_emb=X, ref_labels=y, sample_weights=w), X))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    with pytest.warns(UserWarning, match="one and the same tensor"):
        step(X, y, ref_emb=X, ref_labels=y.clone(), sample_weights=w)


def test_values_alone_are_replayed_without_a_graph():
    loss = anchors()
    step = loss.recorded(*batch(0))
    with torch.no_grad():
        value = step(*batch(1))
    assert not value.requires_grad
    torch.testing.assert_close(value, loss(*batch(1)).detach(), rtol=0, atol=0)


def test_each_backward_is_of_the_last_call_and_once():
    step = anchors().recorded(*batch(0))
    first, second = step(*batch(0)), step(*batch(1))
    with pytest.raises(RuntimeError, match="gradients of its last call alone"):
        first.backward()
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="gradients of its last call alone"):
        second.backward()


def test_parameters_that_an_optimiser_changed_before_backward_are_an_error():
    loss = anchors()
    value = loss.recorded(*batch(0))(*batch(0))
    with torch.no_grad():
        loss.proxies.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_no_second_derivatives_and_no_transforms():
    loss = anchors()
    step, (X, y) = loss.recorded(*batch(0)), batch(0)
    with pytest.raises(RuntimeError, match=r"create_graph=True.*call the loss itself"):
        torch.autograd.grad(step(X, y), X, create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.grad(lambda x: step(x, y))(X.detach())


OTHER = {
    "shape": lambda: batch(1, rows=3),
    "type": lambda: batch(1, dtype=torch.bfloat16),
    "is float": lambda: (batch(1)[0], batch(1)[1].float()),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_inputs_take_a_plain_step_with_one_note(name):
    loss = anchors()
    step, other = loss.recorded(*batch(0)), OTHER[name]()
    with pytest.warns(UserWarning, match="a recorded ProxyAnchorLoss takes a plain step: .* was recorded"):
        value = step(*other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(step(*other), value)
        torch.testing.assert_close(loss(*other), value)
        step(*batch(2)).backward()  # replayed
    assert step.graphs is not None


def test_evaluation_takes_a_plain_step_and_training_goes_on():
    loss = losses.AdaFaceLoss(C, D)
    step = loss.recorded(*batch(0))
    loss.eval()
    with pytest.warns(UserWarning, match="training mode"):
        step(*batch(0))
    loss.train()
    assert step.graphs is not None
    step(*batch(0)).backward()


CHANGES = {
    "a setting": lambda loss: setattr(loss, "alpha", 8.0),
    "memory": lambda loss: setattr(loss.proxies, "data", loss.proxies.data.clone()),
    "type": lambda loss: loss.double(),
    "frozen": lambda loss: loss.requires_grad_(False),
    "an optimiser in the sweep": lambda loss: setattr(loss, "keep", ProxyAdamW(loss)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_loss_takes_plain_steps_and_frees_the_graphs(name):
    loss = anchors()
    step = loss.recorded(*batch(0))
    graph, pending = weakref.ref(step.graphs.forward), step(*batch(0))
    CHANGES[name](loss)
    with pytest.warns(UserWarning, match="record again"):
        value = step(*batch(1))
    gc.collect()
    assert step.graphs is None and graph() is None
    value.backward()
    assert torch.isfinite(value)
    with pytest.raises(RuntimeError, match=r"its last call alone|modified by an inplace operation"):
        pending.backward()


def bound():
    loss = anchors()
    loss.optimizer = ProxyAdamW(loss)
    return loss


def reduced():
    from pytorch_metric_learning import reducers

    return anchors(reducer=reducers.ThresholdReducer(low=0))


X0, Y0 = batch(0)
REFUSED = {
    "an optimiser in the sweep": (bound, (X0, Y0), RuntimeError, "its optimiser|steps within its sweep"),
    "drawn negatives": (lambda: anchors(negative_share=0.5), (X0, Y0), RuntimeError, "draws its negatives anew"),
    "a reducer": (reduced, (X0, Y0), RuntimeError, "reducer or distance is not fused"),
    "pairs": (losses.SupConLoss, (X0, Y0, (Y0,) * 4), TypeError, "indices_tuple must be a tensor"),
    "what waits": (losses.ContrastiveLoss, (X0, Y0), RuntimeError, "not permitted when stream is capturing"),
    "nothing": (anchors, (), TypeError, "missing a required argument"),
    "no gradient": (lambda: anchors().requires_grad_(False), (X0.detach(), Y0), ValueError, "no gradient is wanted"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    make, inputs, error, message = REFUSED[name]
    if name == "a reducer":
        pytest.importorskip("pytorch_metric_learning")
    with pytest.raises(error, match=message):
        make().recorded(*inputs)


def test_the_cpu_is_refused(monkeypatch):
    monkeypatch.setattr(recorded_step, "_records", ON_CUDA)
    with pytest.raises(ValueError, match="embeddings is on cpu: CUDA graphs need a CUDA device"):
        anchors().recorded(*batch(0))


def test_a_replay_within_the_capture_of_another_graph_is_refused():
    step = anchors().recorded(*batch(0))
    with torch.cuda.graph(torch.cuda.CUDAGraph(), None, None, "global"), pytest.raises(RuntimeError, match="another"):
        step(*batch(0))


def test_first_steps_are_watched():
    loss = anchors()
    step = loss.recorded(*batch(0))
    assert loss.first_steps.calls == 0
    step(*batch(0))
    assert loss.first_steps.calls == 1
