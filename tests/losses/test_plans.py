"""Plans of a loss follow whatever changes between two calls: each call has the bits of a new loss."""

import copy
import pickle
import threading

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.engine import plan as plans
from robustdml_ops.optim import ProxySGD

C, D, B = 23, 8, 12


def new_loss(kind=losses.ProxyAnchorLoss, **settings):
    torch.manual_seed(3)
    return kind(C, D, **settings)


def batch(n=B, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n)
    X = torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype)
    return X.requires_grad_(), torch.randint(C, (n,), generator=generator)


def step(loss_function, X, y, **given):
    """Loss and gradients of a call."""
    X.grad = None
    loss_function.zero_grad()
    loss = loss_function(X, y, **given)
    if loss.requires_grad:
        loss.backward()
    return [loss.detach(), X.grad, *(parameter.grad for parameter in loss_function.parameters())]


def set_attribute(loss_function):
    loss_function.alpha = 7.0


def set_margin(loss_function):
    loss_function.margin = 0.3


def widen(loss_function):
    loss_function.double()


def set_data(loss_function):
    loss_function.proxies.data = loss_function.proxies.data.flip(0)


def set_narrow_data(loss_function):
    loss_function.proxies.data = loss_function.proxies.data.bfloat16()


def set_transposed_data(loss_function):
    loss_function.proxies.data = loss_function.proxies.data.t().contiguous().t()


def load(loss_function):
    loss_function.load_state_dict({"proxies": torch.arange(C * D).view(C, D) % 7 - 3.0})


def replace_parameter(loss_function):
    loss_function.proxies = torch.nn.Parameter(torch.ones(C, D).tril())


def freeze(loss_function):
    loss_function.proxies.requires_grad_(False)


def evaluate(loss_function):
    loss_function.eval()


def take_eager(loss_function):
    loss_function.backend = "eager"


def set_reduction(loss_function):
    loss_function.reduction = "none"


def ignore(loss_function):
    loss_function.ignore_index = 3


def drop_negatives(loss_function):
    loss_function.drop_similar_negatives = 0.1


CHANGES = [
    set_attribute,
    set_margin,
    widen,
    set_data,
    set_narrow_data,
    set_transposed_data,
    load,
    replace_parameter,
    freeze,
    evaluate,
    take_eager,
    ignore,
    drop_negatives,
]


@pytest.mark.filterwarnings("ignore:.proxies of ProxyAnchorLoss is torch.bfloat16")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_between_two_calls(change):
    used, fresh, (X, y) = new_loss(), new_loss(), batch()
    step(used, X, y)
    for loss_function in (used, fresh):
        change(loss_function)
    torch.testing.assert_close(step(used, X, y), step(fresh, X, y), rtol=0, atol=0)


@pytest.mark.parametrize("change", [set_attribute, widen, set_data, freeze, evaluate, take_eager])
def test_changes_of_a_loss_with_learnt_margins(change):
    kind, (X, y) = losses.AdaptiveProxyAnchorLoss, batch()
    used, fresh = new_loss(kind), new_loss(kind)
    step(used, X, y)
    for loss_function in (used, fresh):
        change(loss_function)
        loss_function.margins.data += 0.1
    torch.testing.assert_close(step(used, X, y), step(fresh, X, y), rtol=0, atol=0)


def test_a_changed_reduction():
    used, (X, y) = new_loss(), batch()
    step(used, X, y)
    set_reduction(used)
    assert used(X, y).shape == (C,)


@pytest.mark.filterwarnings("ignore:ProxyAnchorLoss with distance=CosineSimilarity")
def test_a_changed_distance_or_reducer():
    peer = pytest.importorskip("pytorch_metric_learning", reason="pytorch-metric-learning is not installed")
    used, (X, y) = new_loss(), batch()
    before = step(used, X, y)[0]
    used.distance.power = 2
    assert step(used, X, y)[0] != before
    used.distance.power = 1
    for reducer in used.reducer.reducers.values():
        reducer.collect_stats = True
    torch.testing.assert_close(step(used, X, y)[0], before)
    sums = {name: peer.reducers.SumReducer() for name in used.parts}
    used.reducer = peer.reducers.MultipleReducers(sums)
    assert step(used, X, y)[0] > 2 * before


def test_classes_that_are_added():
    from robustdml_ops.optim import grow_classes

    used, (X, y) = new_loss(), batch()
    step(used, X, y)
    grow_classes(used, None, C + 5)
    fresh = losses.ProxyAnchorLoss(C + 5, D)
    fresh.load_state_dict(used.state_dict())
    torch.testing.assert_close(step(used, X, y + 5), step(fresh, X, y + 5), rtol=0, atol=0)


def test_an_environment_variable(monkeypatch):
    used, (X, y) = new_loss(), batch()
    step(used, X, y)
    monkeypatch.setenv("ROBUSTDML_BACKEND", "eager")
    torch.testing.assert_close(step(used, X, y), step(new_loss(), X, y), rtol=0, atol=0)
    monkeypatch.setenv("ROBUSTDML_BACKEND", "nothing")
    with pytest.raises(ValueError, match="expected one of"):
        used(X, y)


def test_an_optimiser_that_is_bound_between_two_calls():
    used, fresh, (X, y) = new_loss(), new_loss(), batch()
    step(used, X, y)
    used.zero_grad()
    optimizers = [ProxySGD(one, lr=0.1) for one in (used, fresh)]
    found = []
    for loss_function, optimizer in zip((used, fresh), optimizers, strict=True):
        loss_function(X, y).backward()
        optimizer.step()
        found.append(loss_function.proxies.detach().clone())
        assert loss_function.proxies.grad is None
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("default", [torch.float64, torch.float16])
def test_another_default_type(default):
    used, (X, y) = new_loss(), batch()
    before = step(used, X, y)
    torch.set_default_dtype(default)
    try:
        torch.testing.assert_close(step(used, X, y), before, rtol=0, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_default_device():
    used, (X, y) = new_loss(), batch()
    before = step(used, X, y)
    with torch.device("meta"):
        torch.testing.assert_close(step(used, X, y), before, rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))], ids=["copy", "file"])
def test_copies_have_plans_of_their_own(copied):
    used, (X, y) = new_loss(), batch()
    before = step(used, X, y)
    other = copied(used)
    torch.testing.assert_close(step(other, X, y), before, rtol=0, atol=0)
    other.alpha = 3.0
    torch.testing.assert_close(step(used, X, y), before, rtol=0, atol=0)
    assert other(X, y) != before[0]


def test_grad_modes_and_types_between_calls():
    used, (X, y) = new_loss(), batch()
    before = step(used, X, y)
    with torch.no_grad():
        assert not used(X, y).requires_grad
    with torch.inference_mode():
        assert used(X, y) == before[0]
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(step(used, X, y), step(new_loss(), X, y), rtol=0, atol=0)
    assert step(used, *batch(dtype=torch.float64))[0].dtype == torch.float64
    assert used.proxies.dtype == torch.float64


def test_batches_of_changing_length_evict_the_oldest():
    used = new_loss()
    for n in range(1, 3 * plans.MOST):
        torch.testing.assert_close(step(used, *batch(n)), step(new_loss(), *batch(n)), rtol=0, atol=0)
    assert len(used._plans.known) <= plans.MOST


def test_threads_that_share_a_loss():
    used, expected, found = new_loss().eval(), {}, {}
    for n in range(1, 9):
        expected[n] = step(new_loss(), *batch(n))[0]

    def calls(n):
        X, y = batch(n)
        found[n] = [used(X, y).detach() for _ in range(50)]

    threads = [threading.Thread(target=calls, args=(n,)) for n in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(value == expected[n] for n, values in found.items() for value in values)
    assert len(found) == len(expected)


def test_a_plan_is_plain():
    used, (X, y) = new_loss(), batch()
    step(used, X, y)
    (plan,) = used._plans.known.values()
    assert repr(plan).startswith("AnchorPlan(wanted=(True, True), alpha=32")
