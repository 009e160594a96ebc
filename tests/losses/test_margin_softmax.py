"""CosFace, ArcFace and Sub-center ArcFace: angles at their ends, the label's turn past half a circle, outliers."""

import math

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import DotProductSimilarity

from robustdml_ops.losses import ArcFaceLoss, CosFaceLoss, SubCenterArcFaceLoss

ANGLES = torch.tensor([0, 1e-3, 0.7, 1.5, 2.0, 2.6, 2.7, 3.0, math.pi - 1e-3, math.pi], dtype=torch.float64)


def at_angles(angles, dtype):
    """Samples at these angles with the weight of class 0, at right angles with that of class 1."""
    X = torch.stack([angles.cos(), torch.zeros_like(angles), angles.sin()], 1).to(dtype)
    # cos π as the tables have it leaves a sine of 1e-16.
    X[angles == math.pi] = torch.tensor([-1.0, 0, 0], dtype=dtype)
    W = torch.tensor([[1.0, 0], [0, 1], [0, 0]], dtype=dtype)
    return X.requires_grad_(), W


def loss_and_gradients(loss_function, X, W, labels):
    loss_function.W.data = W.clone()
    losses = loss_function.compute_loss(X, labels, None, X, labels)["loss"]["losses"]
    return losses, *torch.autograd.grad(losses.sum(), (X, loss_function.W))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("margin", [0.0, 28.6, 90.0])
def test_parallel_vectors_have_finite_gradients_and_others_the_peers(margin, dtype):
    X, W = at_angles(ANGLES, dtype)
    y = torch.zeros(len(X), dtype=torch.int64)
    mine, others = (loss_and_gradients(build(2, 3, margin, 8.0), X, W, y) for build in (ArcFaceLoss, pml.ArcFaceLoss))
    assert all(torch.isfinite(each).all() for each in mine)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3  # 6e-8 of the cosine, over the sine
    torch.testing.assert_close(mine[0], others[0], rtol=tolerance, atol=tolerance)
    finite = torch.isfinite(others[1]).all(1)
    assert finite[1:-1].all()
    torch.testing.assert_close(mine[1][finite], others[1][finite], rtol=tolerance, atol=tolerance)
    # Of what draws it to its own class, or drives it away, nothing has a direction.
    assert not mine[1][[0, -1]][:, [0, 2]].any()


def test_a_sample_that_is_sure_keeps_its_small_loss():
    """log(1 + e^−30) is no difference of two numbers of 30, of which float32 would keep nothing."""
    X = torch.tensor([[1.0, 0.0]])
    loss_function = ArcFaceLoss(2, 2, margin=0.0, scale=30.0)
    loss_function.W.data = torch.eye(2)
    torch.testing.assert_close(loss_function(X, torch.tensor([0])), torch.tensor(math.exp(-30)), rtol=1e-5, atol=0)


def subcenters(C=6, D=5, H=3, dtype=torch.float32):
    torch.manual_seed(1)
    other = pml.SubCenterArcFaceLoss(num_classes=C, embedding_size=D, sub_centers=H).to(dtype)
    mine = SubCenterArcFaceLoss(C, D, sub_centers=H).to(dtype)
    mine.load_state_dict(other.state_dict())
    # The last class has no sample.
    return mine, other, torch.randn(300, D, dtype=dtype), torch.randint(C - 1, (300,))


@pytest.mark.parametrize("threshold", [20, 75, 110])
def test_outliers_are_the_peers(threshold, monkeypatch):
    monkeypatch.setattr("robustdml_ops.losses.subcenter_arcface._SAMPLES", 77)
    mine, other, X, y = subcenters(dtype=torch.float64)
    found, centers = mine.get_outliers(X, y, threshold)
    expected, their_centers = other.get_outliers(X, y, threshold)
    assert 0 < len(found) < 300
    assert torch.equal(found, expected)
    assert torch.equal(centers[:, :-1], their_centers[:, :-1])  # theirs of the last class are not initialised
    assert not centers[:, -1].any()
    assert not centers.requires_grad
    again = mine.get_outliers(X, y, threshold, return_dominant_centers=False)
    assert torch.equal(again[0], found)
    assert torch.equal(again[1], centers)


def test_outliers_of_bad_input():
    mine, _, X, y = subcenters()
    for arguments, error, message in (
        ((X[:, :2], y), ValueError, "embeddings must have 5 columns"),
        ((X, y[:3]), ValueError, r"labels must have shape \(300,\)"),
        ((X, y + 3), IndexError, "is outside 0 … 5"),
        ((X.log(), y), ValueError, "NaN or inf"),
        ((X, y, float("nan")), ValueError, "threshold must be finite, got nan"),
    ):
        with pytest.raises(error, match=message):
            mine.get_outliers(*arguments)
    outliers, centers = mine.get_outliers(X[:0], y[:0])
    assert outliers.shape == (0,)
    assert centers.shape == (5, 6)


def test_of_equal_centers_the_first_has_the_gradient():
    loss_function = SubCenterArcFaceLoss(2, 3, sub_centers=2).double()
    column = torch.tensor([1.0, 2, 0], dtype=torch.float64)
    loss_function.W.data = torch.stack([column, column, -column, -column], 1)
    loss_function(torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 1])).backward()
    gradient = loss_function.W.grad
    assert gradient[:, [0, 2]].abs().sum(0).min() > 0
    assert not gradient[:, [1, 3]].any()


def test_distances_that_are_no_cosines_are_refused():
    for kind in (CosFaceLoss, ArcFaceLoss, SubCenterArcFaceLoss):
        with pytest.raises(ValueError, match=r"distance=DotProductSimilarity\(.*margins are of cosines"):
            kind(4, 3, distance=DotProductSimilarity())


def test_outliers_in_half_precision():
    mine, _, X, y = subcenters()
    expected = mine.get_outliers(X, y)[0]
    found, centers = mine.bfloat16().get_outliers(X.bfloat16(), y)
    assert centers.dtype == torch.bfloat16
    assert len(set(found.tolist()) ^ set(expected.tolist())) <= 6  # at the threshold
