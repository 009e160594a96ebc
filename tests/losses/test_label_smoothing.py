"""Label smoothing and weights of classes of softmax losses, against ``F.cross_entropy`` on dense logits."""

import pytest
import torch
from torch.nn import functional

from robustdml_ops import losses
from robustdml_ops.ops import ABSENT, class_lse
from robustdml_ops.optim import grow_classes

B, C, D = 19, 23, 6
LOSSES = {
    "softmax": lambda **options: losses.NormalizedSoftmaxLoss(C, D, temperature=0.2, **options),
    "proxy-nca": lambda **options: losses.ProxyNCALoss(C, D, softmax_scale=3, **options),
    "cosface": lambda **options: losses.CosFaceLoss(C, D, scale=9, **options),
    "arcface": lambda **options: losses.ArcFaceLoss(C, D, scale=90, **options),
    "centres": lambda **options: losses.SubCenterArcFaceLoss(C, D, scale=9, **options),
    "soft-triple": lambda **options: losses.SoftTripleLoss(C, D, centers_per_class=3, **options),
}
WEIGHT = torch.linspace(0, 2, C)
OPTIONS = {
    "smoothing": {"label_smoothing": 0.1},
    "weight": {"weight": WEIGHT},
    "both": {"label_smoothing": 0.3, "weight": WEIGHT},
}


def made(kind, dtype=torch.float64, **options):
    torch.manual_seed(1)
    loss_function = LOSSES[kind](**options).to(dtype)
    X, y = torch.randn(B, D, dtype=dtype), torch.randint(C, (B,))
    return loss_function, X.requires_grad_(), y


def dense_logits(loss_function, X, own):
    """All logits with the margin at the labels, whose places are True in ``own`` (B, C)."""
    logits = loss_function.get_logits(X)
    if isinstance(loss_function, losses.SoftTripleLoss):
        return loss_function.la * (logits - loss_function.margin * own.double())
    if isinstance(loss_function, losses.ProxyNCALoss):
        return -loss_function.softmax_scale * logits
    if not hasattr(loss_function, "scale"):
        return logits
    cosines, margin = logits / loss_function.scale, torch.tensor(loss_function.margin, dtype=torch.float64)
    return loss_function.scale * torch.where(own, loss_function._moved(cosines, margin), cosines)


def gradients(loss, loss_function, X, **options):
    (P,) = loss_function.parameters()
    return torch.autograd.grad(loss, (X, P), **options)


def one_hot(y):
    return functional.one_hot(y, C).bool()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", LOSSES)
def test_equals_cross_entropy(kind, options, backend):
    options = OPTIONS[options]
    given = {name: value.double() if name == "weight" else value for name, value in options.items()}
    for reduction in ("mean", "sum", "none"):
        loss_function, X, y = made(kind, reduction=reduction, backend=backend, **options)
        expected = functional.cross_entropy(dense_logits(loss_function, X, one_hot(y)), y, reduction=reduction, **given)
        loss, upstream = loss_function(X, y), torch.rand(expected.shape, dtype=torch.float64)
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
        found = gradients((upstream * loss).sum(), loss_function, X)
        exact = gradients((upstream * expected).sum(), loss_function, X)
        torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["softmax", "arcface", "soft-triple"])
def test_several_labels(kind):
    """As ``F.cross_entropy`` with probabilities; a sample without a class has no loss."""
    loss_function, X, _ = made(kind, label_smoothing=0.2, weight=WEIGHT)
    labels = torch.rand(B, C).argsort(1)[:, :3]
    weights = torch.rand(B, 3, dtype=torch.float64)
    labels[4, 1] = ABSENT
    weights[4, 1] = 0
    labels[7] = ABSENT
    places = labels.masked_fill(labels == ABSENT, C)
    shares = torch.zeros(B, C + 1, dtype=torch.float64).scatter_add(1, places, weights)[:, :C]
    own = torch.zeros(B, C + 1, dtype=torch.bool).scatter(1, places, True)[:, :C]
    logits = dense_logits(loss_function, X, own)
    each = functional.cross_entropy(logits, shares, weight=WEIGHT.double(), label_smoothing=0.2, reduction="none")
    expected = each.masked_fill(torch.arange(B) == 7, 0).mean()
    loss = loss_function(X, labels, label_weights=weights)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        gradients(loss, loss_function, X), gradients(expected, loss_function, X), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("kind", ["softmax", "arcface", "soft-triple"])
def test_second_derivatives(kind):
    loss_function, X, y = made(kind, label_smoothing=0.2, weight=WEIGHT)
    found = []
    logits = dense_logits(loss_function, X, one_hot(y))
    dense = functional.cross_entropy(logits, y, weight=WEIGHT.double(), label_smoothing=0.2)
    for loss in (loss_function(X, y), dense):
        first = gradients(loss, loss_function, X, create_graph=True)
        found.append(gradients(sum((gradient**2).sum() for gradient in first), loss_function, X))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


def test_sample_weights_and_ignored_samples():
    loss_function, X, y = made("arcface", label_smoothing=0.2, weight=WEIGHT, ignore_index=-100)
    y[::3] = -100
    logits = dense_logits(loss_function, X, one_hot(y.clamp(min=0)))
    expected = functional.cross_entropy(logits, y, weight=WEIGHT.double(), label_smoothing=0.2)
    torch.testing.assert_close(loss_function(X, y), expected)
    assert loss_function(X, torch.full_like(y, -100)) == 0


def test_a_reducer_takes_the_weighted_mean():
    reducers = pytest.importorskip("pytorch_metric_learning.reducers")
    loss_function, X, y = made("softmax", weight=WEIGHT)
    other, *_ = made("softmax", weight=WEIGHT, reducer=reducers.MeanReducer(collect_stats=True))
    torch.testing.assert_close(other(X, y), loss_function(X, y))


def test_weights_are_saved_grow_and_stay_in_torch_func():
    loss_function, X, y = made("softmax", weight=WEIGHT, label_smoothing=0.1)
    assert torch.equal(loss_function.state_dict()["weight"], WEIGHT.double())
    before = torch.func.grad(lambda rows: loss_function(rows, y))(X.detach())
    torch.testing.assert_close(before, gradients(loss_function(X, y), loss_function, X)[0])
    grow_classes(loss_function, None, C + 2)
    assert loss_function.weight.tolist()[-2:] == [1.0, 1.0]
    loss_function(X, y + 2).backward()


def test_compiled():
    loss_function, X, y = made("arcface", weight=WEIGHT, label_smoothing=0.1)
    compiled = torch.compile(loss_function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        gradients(compiled(X, y), loss_function, X), gradients(loss_function(X, y), loss_function, X)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.5}, r"label_smoothing must lie in \[0, 1\], got 1.5"),
        ({"label_smoothing": 0.1, "negative_share": 0.5}, "negative_share leaves some out"),
        ({"label_smoothing": 0.1, "drop_similar_negatives": 0.5}, "drop_similar_negatives leaves some out"),
        ({"label_smoothing": 0.1, "include_positive": False}, "label_smoothing with include_positive=False"),
        ({"weight": torch.ones(C + 1)}, f"weight must be a floating-point vector of length {C}"),
        ({"weight": -torch.ones(C)}, r"weight\[0\] = -1.0: weights of classes must be finite and not negative"),
        ({"weight": torch.full((C,), torch.inf)}, "weights of classes must be finite and not negative"),
        ({"weight": torch.ones(C, requires_grad=True)}, r"pass weight.detach\(\)"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        LOSSES["proxy-nca"](**options)


def test_the_weighted_sum_of_logits_as_an_op():
    X, P, v = torch.randn(B, D), torch.randn(C, D), torch.randn(C)
    y = torch.randint(C, (B,))
    lse, target = class_lse(X, P, y, scale=3.0, logit_weights=v)
    logits = 3 * functional.normalize(X) @ functional.normalize(P).t()
    torch.testing.assert_close(target[:, 1], (logits * v).masked_fill(one_hot(y), 0).sum(1))
    torch.testing.assert_close((lse, target[:, 0]), tuple(class_lse(X, P, y, scale=3.0)))
    with pytest.raises(ValueError, match="logit_weights beside bias"):
        class_lse(X, P, y, bias=torch.zeros(C), logit_weights=v)
    with pytest.raises(ValueError, match="logit_weights must be a floating-point vector"):
        class_lse(X, P, y, logit_weights=torch.ones(3))
    with pytest.raises(ValueError, match="logit_weights requires a gradient"):
        class_lse(X, P, y, logit_weights=v.requires_grad_())
