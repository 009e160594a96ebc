"""The planned step of softmax losses in one native call, against the general way in float64, and its graph."""

import copy

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.backends import native_module
from robustdml_ops.ops import limit_saved_bytes
from robustdml_ops.ops.classes.plan import ClassPlan

pytestmark = pytest.mark.skipif(native_module.matrix_product(torch.float32) == 0, reason="no lanes here")

LOSSES = {
    "softmax": lambda C, D: losses.NormalizedSoftmaxLoss(C, D),
    "softmax, steep": lambda C, D: losses.NormalizedSoftmaxLoss(C, D, temperature=1 / 60),
    "proxy-nca": lambda C, D: losses.ProxyNCALoss(C, D, softmax_scale=9),
    "proxy-nca of 2017": lambda C, D: losses.ProxyNCALoss(C, D, softmax_scale=9, include_positive=False),
    "cosface": lambda C, D: losses.CosFaceLoss(C, D),
    "arcface": lambda C, D: losses.ArcFaceLoss(C, D),
    "arcface, a large margin": lambda C, D: losses.ArcFaceLoss(C, D, margin=100, scale=10),
    "arcface, margins of classes": lambda C, D: losses.ArcFaceLoss(C, D, margin=60 * torch.rand(C)),
    "cosface, margins of classes": lambda C, D: losses.CosFaceLoss(C, D, margin=torch.rand(C), scale=30),
    "adaface": lambda C, D: losses.AdaFaceLoss(C, D).eval(),  # in training each call moves the margins
    "adaface, a large margin": lambda C, D: losses.AdaFaceLoss(C, D, margin=1.4, concentration=30, scale=10).eval(),
    "sub-centres": lambda C, D: losses.SubCenterArcFaceLoss(C, D, sub_centers=3, scale=20),
    "soft-triple": lambda C, D: losses.SoftTripleLoss(C, D, centers_per_class=2),
}
SHAPES = [(12, 23, 8), (1, 2, 3), (37, 301, 19), (70, 300, 16)]


@pytest.fixture
def taken(monkeypatch):
    """Results of the planned steps; ``allowed = [False]`` keeps all on the general way."""
    seen, run = [], ClassPlan.run

    def counted(plan, *tensors):
        results = run(plan, *tensors) if counted.allowed else None
        if results is not None:
            seen.append(plan)
        return results

    counted.allowed = True
    monkeypatch.setattr(ClassPlan, "run", counted)
    seen_of = type("Taken", (), {"plans": seen, "run": counted})
    return seen_of


def inputs(kind, B, C, D, dtype=torch.float32):
    """A loss, embeddings of which half are near their class, and labels."""
    torch.manual_seed(1)
    loss_function = LOSSES[kind](C, D).to(dtype)
    y = torch.randint(C, (B,))
    rows = loss_function._class_matrix().detach()
    X = torch.randn(B, D, dtype=dtype)
    H = loss_function.centers or 1
    X[::2] = 0.2 * X[::2] + rows[y[::2] * H]
    return loss_function, X.requires_grad_(), y


def step(loss_function, X, y, upstream=1.0, **given):
    X.grad = None
    loss_function.zero_grad()
    loss = loss_function(X, y, **given)
    (upstream * loss).backward()
    return [tensor.detach().clone() for tensor in (loss, X.grad, *(p.grad for p in loss_function.parameters()))]


def assert_near(found, exact, bound, least=1e-3):
    for mine, truth in zip(found, exact, strict=True):
        assert (mine.double() - truth.double()).abs().max() <= bound * max(least, float(truth.abs().max()))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", LOSSES)
def test_the_general_way_in_float64(kind, shape, taken):
    loss_function, X, y = inputs(kind, *shape)
    exact = copy.deepcopy(loss_function).double()
    for weights, upstream in ((None, 1.0), (torch.rand(len(y)), 0.3), (torch.rand(len(y)) < 0.5, 1.0)):
        ours = step(loss_function, X, y, upstream, sample_weights=weights)
        taken.run.allowed = False
        X64 = X.detach().double().requires_grad_()
        theirs = step(exact, X64, y, upstream, sample_weights=weights)
        taken.run.allowed = True
        in_double = step(exact, X64, y, upstream, sample_weights=weights)
        assert_near(ours, theirs, 3e-5)
        assert_near(in_double, theirs, 1e-11, least=0.1)
    assert len(taken.plans) == 6


@pytest.mark.parametrize("kind", ["cosface", "arcface", "arcface, margins of classes", "sub-centres"])
def test_margins_of_samples(kind, taken):
    loss_function, X, y = inputs(kind, 37, 301, 19)
    exact, margins = copy.deepcopy(loss_function).double(), 1.2 * torch.rand(37)
    margins *= 90 if loss_function.margin_unit < 1 else 1
    ours = step(loss_function, X, y, margins=margins)
    assert len(taken.plans) == 1
    taken.run.allowed = False
    theirs = step(exact, X.detach().double().requires_grad_(), y, margins=margins)
    assert_near(ours, theirs, 3e-5)
    other = step(loss_function, X, y)
    assert (ours[0] - other[0]).abs() > 0.01


def test_margins_that_are_nan_have_the_error_of_the_general_way(taken):
    loss_function, X, y = inputs("arcface", 12, 23, 8)
    with pytest.raises(ValueError, match="margins have NaN or inf"):
        loss_function(X, y, margins=torch.full((12,), torch.nan))
    assert not taken.plans


def test_running_lengths_of_adaface(taken):
    """The same by both ways; a call that fails, and a second backward, leave them."""
    found = []
    for taken.run.allowed in (False, True):
        loss_function, X, y = inputs("adaface", 37, 301, 19)
        loss_function.train()
        for weights in (None, torch.arange(37) % 3 > 0):
            loss = loss_function(X, y, sample_weights=weights)
            gradients = [torch.autograd.grad(loss, X, retain_graph=True)[0] for _ in range(2)]
        y[3] = 301
        with pytest.raises(IndexError):
            loss_function(X, y)
        y[3] = 0
        found.append([loss_function.mean_length.clone(), loss_function.length_deviation.clone(), *gradients])
        loss_function(X[:1], y[:1])  # one sample has no deviation
        torch.testing.assert_close(found[-1][:2], [loss_function.mean_length, loss_function.length_deviation])
    assert len(taken.plans) == 3
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", ["softmax", "arcface", "sub-centres"])
def test_threads_and_kept_terms_leave_the_bits(kind, taken, threads):
    """All terms kept, some of them, and none; on one to three threads."""
    found = []
    for count in (1, 2, 3):
        threads(count)
        for most in (None, 4 * 37 * 130, 0):
            limit_saved_bytes(most)
            try:
                found.append(step(*inputs(kind, 37, 3001, 19)))
            finally:
                limit_saved_bytes(None)
    assert {plan.kept for plan in taken.plans} >= {0, 130}
    assert len(taken.plans) == 9
    for of_count in range(3):
        for other in found[3 * of_count + 1 : 3 * of_count + 3]:
            torch.testing.assert_close(other, found[3 * of_count], rtol=0, atol=0)


def test_a_limit_of_saved_bytes_between_two_calls(taken):
    given = inputs("softmax", 12, 23, 8)
    step(*given)
    limit_saved_bytes(0)
    try:
        step(*given)
    finally:
        limit_saved_bytes(None)
    assert [plan.kept for plan in taken.plans] == [23, 0]


@pytest.mark.parametrize("kind", LOSSES)
def test_graph_of_the_general_way(kind, taken):
    """A second backward, and the derivative of a gradient, of embeddings that have a graph of their own."""
    found = []
    for taken.run.allowed in (False, True):
        loss_function, X, y = inputs(kind, 9, 14, 5, torch.float64)
        matrices = X, *loss_function.parameters()
        loss = loss_function(X * X, y)
        loss_function.zero_grad()
        again = [torch.autograd.grad(loss, matrices, retain_graph=True) for _ in range(2)]
        first = torch.autograd.grad(loss, matrices, create_graph=True)
        second = torch.autograd.grad(sum((gradient**2).sum() for gradient in first), matrices)
        found.append([*again[0], *again[1], *first, *second])
    assert len(taken.plans) == 1
    torch.testing.assert_close(*reversed(found), rtol=1e-9, atol=1e-11)


def test_a_setting_changed_between_forward_and_a_second_backward(taken):
    loss_function, X, y = inputs("softmax", 9, 14, 5, torch.float64)
    loss = loss_function(X, y)
    first = torch.autograd.grad(loss, X, retain_graph=True)
    loss_function.temperature = 1.0
    torch.testing.assert_close(torch.autograd.grad(loss, X), first)
    assert len(taken.plans) == 1


SPOILT = {
    "an embedding": lambda loss_function, X, y: X.data[2].fill_(torch.nan),
    "a class": lambda loss_function, X, y: loss_function.W.data[:, 5].fill_(torch.inf),
    "a label": lambda loss_function, X, y: y[1:2].fill_(loss_function.num_classes),
    "a negative label": lambda loss_function, X, y: y[1:2].fill_(-1),
    "weights": lambda loss_function, X, y: None,
}


@pytest.mark.parametrize("what", SPOILT)
def test_errors_of_the_general_way(what, taken):
    given, messages = inputs("arcface", 9, 14, 5), []
    SPOILT[what](*given)
    weights = torch.full((9,), -1.0) if what == "weights" else None
    for taken.run.allowed in (False, True):
        with pytest.raises((ValueError, IndexError)) as error:
            given[0](*given[1:], sample_weights=weights)
        messages.append(str(error.value))
    assert messages[0] == messages[1] and not taken.plans


def test_rows_of_any_length_take_the_general_way(taken):
    loss_function, X, y = inputs("softmax", 9, 14, 5)
    loss_function.W.data[:, 7] *= 1e-30
    step(loss_function, X, y)
    assert not taken.plans


@pytest.mark.parametrize("kind", LOSSES)
def test_only_gradients_that_are_wanted(kind, taken):
    loss_function, X, y = inputs(kind, 12, 23, 8)
    loss, dX, dP = step(loss_function, X, y)
    (P,) = loss_function.parameters()
    X.grad = P.grad = None
    loss_function(X.detach(), y).backward()
    loss_function.requires_grad_(False)
    loss_function(X, y).backward()
    with torch.no_grad():
        value = loss_function(X, y)
    torch.testing.assert_close([value, X.grad, P.grad], [loss, dX, dP], rtol=0, atol=0)
    assert len(taken.plans) == 4


class ModuleMargin(torch.nn.Module):
    def forward(self, embeddings, labels):
        return torch.full((len(labels),), 20.0)


OPTIONS = {
    "none": ({"reduction": "none"}, {}),
    "sampled": ({"negative_share": 0.5}, {}),
    "dropped": ({"drop_similar_negatives": 0.4}, {}),
    "eager": ({"backend": "eager"}, {}),
    "a margin of each class that learns": ({"margin": torch.nn.Parameter(torch.rand(23))}, {}),
    "a margin by a module": ({"margin": ModuleMargin()}, {}),
    "a steep scale": ({"scale": 100}, {}),
    "margins that want a gradient": ({}, {"margins": torch.rand(12, requires_grad=True)}),
    "statistics": ({"collect_stats": True}, {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_take_the_general_way(name, taken):
    settings, given = OPTIONS[name]
    loss_function = losses.ArcFaceLoss(23, 8, **settings)
    if "collect_stats" in settings:
        loss_function.collect_stats = True
    loss_function(torch.randn(12, 8, requires_grad=True), torch.arange(12), **given).sum().backward()
    assert not taken.plans


def test_a_plan_is_plain():
    loss_function, X, y = inputs("arcface", 12, 23, 8)
    step(loss_function, X, y)
    (plan,) = loss_function._plans.known.values()
    assert repr(plan).startswith("ClassPlan(wanted=(True, True), formula=ClassFormula(scale=64")
