"""Losses over a share of the classes: values, expectations, gradients of rows, and runs that go on."""

import copy
from functools import partial

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from test_class_targets import LOSSES, cosines
from torch.utils.checkpoint import checkpoint

from python_ref import cosine_similarity, own_class_limits, sampled_cross_entropy, sampled_proxy_anchor_loss
from robustdml_ops import losses
from robustdml_ops.losses.sampling import draw_classes
from tests.nightly import nightly_but

C, D, B = 30, 5, 8
SHARED = {"negative_share": 0.2, "negative_seed": 3}
BUILDS = {
    "proxy-anchor": lambda **options: losses.ProxyAnchorLoss(C, D, alpha=6, **options),
    "adaptive": lambda **options: losses.AdaptiveProxyAnchorLoss(
        C, D, alpha=6, per_class=True, negative_margin="proxy", **options
    ),
    "proxy-nca-2017": lambda **options: losses.ProxyNCALoss(C, D, 3, include_positive=False, **options),
    # AdaFace is made there for evaluation, which takes all classes.
    **{name: partial(made, C) for name, (made, *_) in LOSSES.items() if name != "adaface"},
}
SOFTMAX = [name for name in BUILDS if name not in ("proxy-anchor", "adaptive")]
every = pytest.mark.parametrize("name", BUILDS)


def build(name, **options):
    torch.manual_seed(0)
    return BUILDS[name](**options).double()


def batch():
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(B, D, generator=generator, dtype=torch.float64, requires_grad=True)
    return X, torch.randint(C, (B,), generator=generator)


def matrix(loss_function):
    """The parameter of the classes."""
    return next(parameter for parameter in loss_function.parameters() if parameter.dim() == 2)


def reference(name, loss_function, X, y, drawn, weights, drop):
    """The dense formula on the classes drawn."""
    if name == "proxy-anchor":
        P = loss_function.proxies
        drop = own_class_limits(cosine_similarity(X, P), y, D) if drop == "own" else drop
        return sampled_proxy_anchor_loss(X, P, y, drawn, weights, 6.0, drop_similar_negatives=drop)
    _, scale, moved = LOSSES[name]
    s, own = cosines(name, loss_function, X), torch.nn.functional.one_hot(y, C).bool()
    return sampled_cross_entropy(scale * torch.where(own, moved(s, loss_function, X), s), y, drawn, weights).mean()


@pytest.mark.parametrize(
    ("name", "correction", "drop"),
    [
        *(("proxy-anchor", True, drop) for drop in (None, 0.2, "own")),
        *((name, corrected, None) for name in SOFTMAX[1:] for corrected in (True, False)),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_values_and_gradients_are_the_reference_s(name, correction, drop, backend):
    options = {"negative_correction": correction} if name in SOFTMAX else {}
    loss_function = build(name, backend=backend, drop_similar_negatives=drop, **SHARED, **options)
    X, y = batch()
    if drop == "own":  # cosines about what chance may bring
        for rows in (X, matrix(loss_function)):
            rows.data = torch.randn_like(rows) + 3
    for step in range(3):
        drawn = draw_classes(y, C, 0.2, torch.tensor([3, step]))
        weights = drawn.weights(torch.float64) if correction else torch.ones(len(drawn.classes), dtype=torch.float64)
        mine, other = loss_function(X, y), reference(name, loss_function, X, y, drawn.classes, weights, drop)
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-12)
        inputs = (X, matrix(loss_function))
        gradients = [torch.autograd.grad(loss, inputs, create_graph=True) for loss in (mine, other)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)
        second = [torch.autograd.grad(sum(g.square().sum() for g in each), inputs) for each in gradients]
        torch.testing.assert_close(*second, rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:100 steps have not moved")
@pytest.mark.parametrize("name", nightly_but(["adaptive"], ["proxy-anchor", "adaptive"]))
def test_loss_and_gradients_of_proxy_anchor_keep_their_expectation(name):
    loss_function, (X, y) = build(name, **SHARED), batch()

    def numbers():
        loss = loss_function(X, y)
        gradients = torch.autograd.grad(loss, (X, matrix(loss_function)))
        return torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)])

    values = torch.stack([numbers() for _ in range(300)])
    loss_function.eval()
    error = values.std(0) / 300**0.5
    z = (values.mean(0) - numbers()) / error.clamp(min=1e-12)
    assert z.abs().max() < 4.5  # of 191 numbers
    assert (error > 1e-6).sum() > 100


@every
def test_terms_and_parts_have_the_same_sum(name):
    X, y = batch()
    mean = build(name, **SHARED)(X, y)
    terms = build(name, **SHARED, reduction="none")(X, y)
    torch.testing.assert_close(terms.mean() if name in SOFTMAX else terms.sum(), mean)
    parts = build(name, **SHARED).compute_loss(X, y, None, None, None)
    if name == "proxy-anchor":
        assert terms.shape == (C,)
        summed = sum(part["losses"].sum() / part["divisor"] for part in parts.values())
        torch.testing.assert_close(summed, mean)
        assert (parts["neg_loss"]["losses"] != 0).sum() == 12


@every
def test_where_the_batch_is_larger_than_the_classes_all_take_part(name):
    loss_function = build(name, **SHARED)
    X = torch.randn(C + 3, D, dtype=torch.float64)
    y = torch.arange(C + 3) % (C - 2)
    torch.testing.assert_close(loss_function(X, y), loss_function.eval()(X, y))


@every
def test_a_share_of_1_and_evaluation_take_all_classes(name):
    X, y = batch()
    loss_function, evaluated = build(name, negative_share=1), build(name, **SHARED).eval()
    assert loss_function.negatives is None
    assert loss_function.state_dict().keys() == build(name).state_dict().keys()
    assert loss_function(X, y) == build(name)(X, y)
    # A matrix whose classes are drawn has another layout, and begins with other values.
    loss_function.load_state_dict(dict(evaluated.named_parameters()))
    torch.testing.assert_close(evaluated(X, y), loss_function(X, y))
    assert evaluated.negatives.state.tolist() == [3, 0]


@every
def test_a_resumed_run_draws_what_it_would_have_drawn(name):
    X, y = batch()
    loss_function = build(name, **SHARED)
    for _ in range(3):
        loss_function(X, y)
    saved = copy.deepcopy(loss_function.state_dict())
    assert saved["negatives.state"].tolist() == [3, 3]
    expected = [loss_function(X, y) for _ in range(2)]
    other = build(name, negative_share=0.2)  # another seed, which the checkpoint replaces
    other.load_state_dict(saved)
    assert [other(X, y) for _ in range(2)] == expected
    # A run over all classes is taken up with fewer.
    plain = build(name).state_dict()
    other.load_state_dict(plain)
    assert other.negatives.state.tolist() == [3, 5]
    # And one with fewer over all, which says that it drops the state of the draws.
    with pytest.warns(UserWarning, match=r"negatives\.state was saved by a loss with sampled negatives.* left out"):
        build(name).load_state_dict(saved)


@pytest.mark.parametrize("name", ["proxy-anchor", "soft triple", "arcface"])
def test_a_receiver_is_given_rows_and_gradient_in_place_of_grad(name):
    """And can update the rows drawn alone, by the very step that a dense gradient would have made."""
    X, y = batch()
    dense, lazy = build(name, **SHARED), build(name, **SHARED)
    optimizer = torch.optim.SGD(dense.parameters(), 0.1)

    def update(rows, gradient):
        W = matrix(lazy).detach()
        assert rows.unique().numel() == len(rows) == len(gradient)
        W = W if name == "proxy-anchor" else W.t()
        W[rows] -= 0.1 * gradient

    lazy.negatives.receiver = update
    for _ in range(4):
        optimizer.zero_grad()
        losses = [loss_function(X, y) for loss_function in (dense, lazy)]
        torch.testing.assert_close(*losses, rtol=1e-13, atol=0)
        before = X.grad
        losses[0].backward()
        optimizer.step()
        X.grad = before
        losses[1].backward()
        assert matrix(lazy).grad is None
        torch.testing.assert_close(matrix(lazy), matrix(dense), rtol=1e-12, atol=1e-13)
    with pytest.raises(RuntimeError, match="leave create_graph=True out"):
        torch.autograd.grad(lazy(X, y), [*lazy.parameters()], create_graph=True)


def test_functional_gradients_take_the_state_with_the_parameters():
    """As they do of every module that counts its steps; the module's own stays where it was."""
    X, y = batch()
    loss_function = build("normalized softmax", **SHARED)

    def loss(parameters, buffers):
        return torch.func.functional_call(loss_function, {**parameters, **buffers}, (X, y))

    parameters = {name: parameter.detach() for name, parameter in loss_function.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in loss_function.named_buffers()}
    found = torch.func.grad(loss)(parameters, buffers)
    assert loss_function.negatives.state.tolist() == [3, 0]
    assert buffers["negatives.state"].tolist() == [3, 1]
    loss_function(X, y).backward()
    torch.testing.assert_close(found["W"], loss_function.W.grad)


@every
def test_a_batch_with_nan_draws_nothing(name):
    loss_function, (X, y) = build(name, **SHARED), batch()
    with torch.no_grad():
        X[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"embeddings\[2\] has NaN"):
        loss_function(X, y)
    assert loss_function.negatives.state.tolist() == [3, 0]


def test_a_checkpoint_that_would_draw_again_is_refused():
    X, y = batch()
    loss = checkpoint(build("proxy-nca", **SHARED), X, y, use_reentrant=False)
    with pytest.raises(RuntimeError, match="would draw other negatives: leave the loss out of the checkpoint"):
        loss.backward()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"negative_share": 0}, ValueError, r"negative_share must lie in \(0, 1\], got 0: 1 takes all classes"),
        ({"negative_share": 1.01}, ValueError, r"negative_share must lie in \(0, 1\], got 1.01"),
        ({"negative_share": float("nan")}, ValueError, r"negative_share must lie in \(0, 1\], got nan"),
        ({"negative_share": "0.1"}, TypeError, "negative_share must be a number, got '0.1'"),
        ({"negative_share": 0.1, "negative_seed": -1}, ValueError, "negative_seed must be at least 0, got -1"),
        ({"negative_share": 0.1, "negative_seed": 0.5}, TypeError, "negative_seed must be an integer, got 0.5"),
        ({"negative_shares": 0.1}, TypeError, "did you mean negative_share"),
    ],
)
def test_bad_settings(options, error, message):
    for make in BUILDS.values():
        with pytest.raises(error, match=message):
            make(**options)


def test_losses_that_have_no_sampled_negatives_say_so():
    with pytest.raises(TypeError, match="negative_share"):
        losses.SmoothProxyAnchorLoss(C, D, negative_share=0.1)
    with pytest.raises(TypeError, match="ProxyAnchorLoss has no argument 'negative_correction'"):
        losses.ProxyAnchorLoss(C, D, negative_share=0.1, negative_correction=False)
    for kind in (losses.ProxyAnchorLoss, losses.ProxyNCALoss):
        with pytest.raises(ValueError, match=r"negative_share is of the fused sums, and distance=LpDistance"):
            kind(C, D, negative_share=0.1, distance=LpDistance())


@every
def test_a_label_out_of_range_is_named(name):
    X, y = batch()
    loss_function = build(name, **SHARED)
    y[2] = C
    with pytest.raises(IndexError, match=rf"labels\[2\] = {C} is outside 0 … {C - 1}"):
        loss_function(X, y)
    assert loss_function.negatives.state.tolist() == [3, 0]
