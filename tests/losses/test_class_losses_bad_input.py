"""Losses over classes: each bad input has a clear error or a documented value."""

import pytest
import torch
from class_cases import NAMES, ClassCase

from robustdml_ops.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SubCenterArcFaceLoss,
)

X = torch.randn(4, 3)
Y = torch.tensor([0, 1, 2, 1])
BUILDS = {
    "proxy-nca": ProxyNCALoss,
    "normalized-softmax": NormalizedSoftmaxLoss,
    "soft-triple": SoftTripleLoss,
    "cosface": CosFaceLoss,
    "arcface": ArcFaceLoss,
    "subcenter-arcface": SubCenterArcFaceLoss,
}


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.randn(4, 5), Y), ValueError, "embeddings must have 3 columns"),
        (([[1.0, 2.0, 3.0]], Y), TypeError, "embeddings must be a torch.Tensor"),
        ((X, Y[:3]), ValueError, r"labels must have shape \(4,\)"),
        ((X, Y + 0.5), ValueError, r"labels must be numbers of classes, got \[0.5, 1.5, 2.5\]"),
        ((X, torch.tensor([0, 1, 7, 1])), IndexError, r"labels\[2\] = 7 is outside 0 … 5"),
        ((X, torch.tensor([0, -1, 2, 1])), IndexError, r"labels\[1\] = -1 is outside 0 … 5"),
        ((torch.full((4, 3), torch.nan), Y), ValueError, r"embeddings\[0\] has NaN or inf"),
        ((X.to("meta"), Y), ValueError, "must be on one device.*meta.*cpu"),
        ((X, Y, None, X[:2], Y[:2]), ValueError, "compares samples with its own proxies: leave ref_emb and ref_labels"),
        ((X, None), ValueError, "labels are missing"),
        ((X, Y, torch.ones(4)), TypeError, "indices_tuple must be a miner's triplets .* got Tensor"),
        ((X, Y, (Y, Y)), TypeError, "indices_tuple must be a miner's triplets"),
        ((X, Y, (Y, Y, Y[:2])), ValueError, r"indices_tuple must hold pairs of equal lengths, got \[4, 4, 2\]"),
        ((X, Y, (Y, Y, Y.float())), ValueError, r"indices_tuple\[2\] must be a vector of integers"),
        ((X, Y, (Y, Y + 4, Y)), IndexError, r"indices_tuple\[1\] holds 6, outside 0 … 3"),
    ],
)
def test_batch(name, arguments, error, message):
    with pytest.raises(error, match=message):
        BUILDS[name](6, 3)(*arguments)


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (torch.ones(3), ValueError, "sample_weights must be a floating-point vector of length 4"),
        (torch.tensor([1.0, -1, 1, 1]), ValueError, r"must be finite and not negative, got \[-1.0\]"),
        (torch.tensor([1.0, torch.nan, 1, 1]), ValueError, "must be finite and not negative"),
        ((Y, Y, Y, Y), TypeError, "sample_weights must be a torch.Tensor, not tuple"),
    ],
)
def test_sample_weights(name, weights, error, message):
    with pytest.raises(error, match=message):
        BUILDS[name](6, 3)(X, Y, sample_weights=weights)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ProxyNCALoss(0, 3), "num_classes must be at least 1, got 0"),
        (lambda: NormalizedSoftmaxLoss(3, 0), "embedding_size must be at least 1, got 0"),
        (lambda: SoftTripleLoss(3, 3, centers_per_class=0), "centers_per_class must be at least 1, got 0"),
        (lambda: ProxyNCALoss(3, 3, softmax_scale=0), "softmax_scale must be positive and finite, got 0"),
        (lambda: ProxyNCALoss(1, 3, include_positive=False), "needs at least 2 classes, got num_classes=1"),
        (lambda: NormalizedSoftmaxLoss(3, 3, temperature=0), "temperature must be positive and finite, got 0"),
        (lambda: NormalizedSoftmaxLoss(3, 3, reduction="sum"), "reduction='sum': expected one of mean, none"),
        (lambda: SoftTripleLoss(3, 3, la=-1), "la must be positive and finite, got -1"),
        (lambda: SoftTripleLoss(3, 3, gamma=0), "gamma must be positive and finite, got 0"),
        (lambda: SoftTripleLoss(3, 3, gamma=float("nan")), "gamma must be positive and finite, got nan"),
        (lambda: SoftTripleLoss(3, 3, regularizer_weight=-0.1), "regularizer_weight must not be negative, got -0.1"),
        (lambda: CosFaceLoss(3, 3, margin=float("inf")), "margin must be finite, got inf"),
        (lambda: CosFaceLoss(3, 3, scale=0), "scale must be positive and finite, got 0"),
        (lambda: ArcFaceLoss(3, 3, margin=float("nan")), "margin must be finite, got nan"),
        (lambda: ArcFaceLoss(3, 0), "embedding_size must be at least 1, got 0"),
        (lambda: SubCenterArcFaceLoss(0, 3), "num_classes must be at least 1, got 0"),
        (lambda: SubCenterArcFaceLoss(3, 3, sub_centers=0), "sub_centers must be at least 1, got 0"),
    ],
)
def test_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_parameters_with_nan_are_an_error(name, reduction):
    loss_function = BUILDS[name](6, 3, reduction=reduction)
    next(iter(loss_function.parameters())).data[1, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or inf"):
        loss_function(X, Y)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_empty_batch_is_a_connected_zero(name, reduction):
    case = ClassCase(name, 4, 6, 3, reduction=reduction)
    case.embeddings = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    case.labels = case.labels[:0]
    loss = case.ours()
    torch.testing.assert_close(loss, case.reference())
    loss.sum().backward()
    assert case.embeddings.grad.shape == (0, 3)
    assert torch.isfinite(case.parameter.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_everything_rejected(name):
    """0, and where there is a regulariser that alone."""
    case = ClassCase(name, 5, 4, 3)
    case.weights = torch.zeros(5, dtype=torch.float64)
    loss = case.ours()
    torch.testing.assert_close(loss, case.reference())
    loss.backward()
    assert not case.embeddings.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_zero_vectors_have_cosine_zero_and_no_gradient(name):
    case = ClassCase(name, 6, 5, 3)
    with torch.no_grad():
        case.embeddings[2] = 0
        (case.parameter if name.startswith("proxy") else case.parameter.t())[1] = 0
    loss = case.ours()
    torch.testing.assert_close(loss, case.reference())
    loss.backward()
    rows = case.parameter.grad if name.startswith("proxy") else case.parameter.grad.t()
    assert not case.embeddings.grad[2].any()
    assert not rows[1].any()
    assert torch.isfinite(rows).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "proxy-nca-2017"])
def test_one_class_has_loss_0(name):
    case = ClassCase(name, 5, 1, 3, reduction="none")
    loss = case.ours()
    torch.testing.assert_close(loss, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    for gradient in case.gradients(loss):
        assert gradient.abs().max() < 1e-12
