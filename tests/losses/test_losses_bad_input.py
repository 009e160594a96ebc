"""Each bad input has a clear error or a documented value: never a crash, a hang or a silent NaN."""

import pytest
import torch
from cases import CPU_BACKENDS, NAMES, Case

from robustdml_ops.losses import AdaptiveProxyAnchorLoss, ProxyAnchorLoss, SmoothProxyAnchorLoss

X = torch.randn(4, 3)
Y = torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("embeddings", "labels", "error", "message"),
    [
        (torch.randn(4, 5), Y, ValueError, "embeddings must have 3 columns"),
        (torch.randn(4), Y, ValueError, "embeddings must be a floating-point matrix"),
        (torch.ones(4, 3, dtype=torch.int64), Y, ValueError, "embeddings must be a floating-point matrix"),
        ([[1.0, 2.0, 3.0]], Y, TypeError, "embeddings must be a torch.Tensor"),
        (X, Y[:3], ValueError, r"labels must have shape \(4,\)"),
        (X, Y[:, None], ValueError, r"labels must have shape \(4,\)"),
        (X, Y + 0.5, ValueError, "labels must be numbers of classes"),
        (X.numpy(), Y, TypeError, r"embeddings must be a torch.Tensor, not ndarray: pass torch.from_numpy\(embeddings"),
        (X, Y[0].numpy(), TypeError, r"not ndarray: pass torch.from_numpy\(labels\)"),
        (X, [0, 1, 2, 1], TypeError, r"labels must be a torch.Tensor, not list: pass torch.tensor\(labels\)"),
        (X, ["a", "b", "c", "b"], TypeError, r"not list: number .*numpy.unique\(labels, return_inverse=True\)\[1\]"),
        (X, torch.tensor([0, 1, 7, 1]), IndexError, r"labels\[2\] = 7 is outside 0 … 5"),
        (X, torch.tensor([0, -1, 2, 1]), IndexError, r"labels\[1\] = -1 is outside 0 … 5"),
        (torch.full((4, 3), torch.nan), Y, ValueError, r"embeddings\[0\] has NaN or inf"),
        (X.clone().index_fill_(0, torch.tensor([2]), torch.inf), Y, ValueError, r"embeddings\[2\] has NaN or inf"),
        (X.to("meta"), Y, ValueError, "must be on one device.*meta.*cpu"),
    ],
)
def test_batch(embeddings, labels, error, message):
    with pytest.raises(error, match=message):
        ProxyAnchorLoss(6, 3)(embeddings, labels)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), "sample_weights must be a floating-point vector of length 4"),
        (torch.ones(4, dtype=torch.int64), "sample_weights must be a floating-point vector"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), r"must be finite and not negative, got \[-1.0\]"),
        (torch.tensor([1.0, torch.nan, 1.0, 1.0]), "must be finite and not negative"),
        (torch.tensor([1.0, torch.inf, 1.0, 1.0]), "must be finite and not negative"),
    ],
)
def test_sample_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        ProxyAnchorLoss(6, 3)(X, Y, sample_weights=weights)


def test_weights_are_not_pairs_of_a_miner():
    """As in pytorch-metric-learning the third argument is a tuple of indices."""
    with pytest.raises(TypeError, match=r"indices_tuple must be a miner's .* weights of samples are sample_weights="):
        ProxyAnchorLoss(6, 3)(X, Y, torch.ones(4))


@pytest.mark.parametrize(
    ("confidences", "error", "message"),
    [
        (torch.rand(4, 5), ValueError, "confidences must have 6 columns"),
        (torch.rand(3, 6), ValueError, "confidences must have 4 rows"),
        (torch.rand(4, 6) + 1, ValueError, r"confidences must lie in \[0, 1\]"),
        (torch.full((4, 6), -0.1), ValueError, r"confidences must lie in \[0, 1\]"),
        (torch.full((4, 6), torch.nan), ValueError, r"confidences must lie in \[0, 1\], got nan"),
        (torch.rand(4, 6, requires_grad=True), ValueError, r"constants of this loss: pass confidences.detach\(\)"),
        (Y, ValueError, "confidences must be a floating-point matrix"),
        ((torch.rand(4, 2), torch.rand(6, 2)), TypeError, r"a tensor \(B, C\) or \(hidden, weight, bias\)"),
        ((torch.rand(4, 2), torch.rand(6, 3), torch.rand(6)), ValueError, "weight must have 2 columns"),
        ((torch.rand(4, 2), torch.rand(5, 2), torch.rand(6)), ValueError, "weight must have 6 rows"),
        ((torch.rand(4, 2), torch.rand(6, 2), torch.rand(5)), ValueError, "bias must be a .* length 6"),
    ],
)
def test_confidences(confidences, error, message):
    with pytest.raises(error, match=message):
        SmoothProxyAnchorLoss(6, 3)(X, confidences)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ProxyAnchorLoss(0, 3), "num_classes must be at least 1, got 0"),
        (lambda: ProxyAnchorLoss(3, 0), "embedding_size must be at least 1, got 0"),
        (lambda: ProxyAnchorLoss(3, 3, alpha=0), "alpha must be positive and finite, got 0"),
        (lambda: ProxyAnchorLoss(3, 3, reduction="sum"), "reduction='sum': expected one of mean, none"),
        (lambda: SmoothProxyAnchorLoss(3, 3, beta=-1), "beta must be positive"),
        (lambda: SmoothProxyAnchorLoss(3, 3, threshold=1.0), r"threshold must lie in \(0, 1\)"),
        (lambda: AdaptiveProxyAnchorLoss(3, 3, margin=0), "margin must be positive"),
        (lambda: AdaptiveProxyAnchorLoss(3, 3, regularization=-1), "regularization must not be negative"),
        (lambda: AdaptiveProxyAnchorLoss(3, 3, negative_margin="class"), "expected one of sample, proxy"),
    ],
)
def test_settings(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_margins_at_the_pole():
    loss_function = AdaptiveProxyAnchorLoss(6, 3)
    loss_function.margins.data.fill_(-0.05)
    with pytest.raises(ValueError, match=r"mean\(margins\) = -0.05.*pole at 0"):
        loss_function(X, Y)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_proxies_with_nan_are_named(backend, reduction, value):
    loss_function = ProxyAnchorLoss(6, 3, reduction=reduction, backend=backend)
    loss_function.proxies.data[4, 1] = value
    with pytest.raises(ValueError, match=r"the loss is nan: proxies\[4\] has NaN or inf"):
        loss_function(X, Y)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_an_infinite_upstream_is_no_error_of_the_inputs(reduction):
    """A loss scaler lets it happen, looks at the gradients and skips the step."""
    loss_function = ProxyAnchorLoss(6, 3, reduction=reduction)
    (loss_function(X, Y).sum() * torch.inf).backward()
    assert not torch.isfinite(loss_function.proxies.grad).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_empty_batch_is_a_connected_zero(name, reduction):
    case = Case(name, 4, 6, 3, reduction=reduction)
    case.embeddings = torch.zeros(0, 3, dtype=torch.float64, requires_grad=True)
    case.labels, case.hidden = case.labels[:0], case.hidden[:0]
    loss = case.ours()
    regularizer = case.module.regularization / case.module.margins.mean() if "adaptive" in name else torch.zeros(())
    torch.testing.assert_close(loss.sum(), regularizer.to(loss.dtype))
    loss.sum().backward()
    assert case.embeddings.grad.shape == (0, 3)
    assert not case.module.proxies.grad.any()


@pytest.mark.parametrize("name", NAMES)
def test_zero_vectors_have_cosine_zero_and_no_gradient(name):
    case = Case(name, 6, 5, 3)
    with torch.no_grad():
        case.embeddings[2] = 0
        case.module.proxies[1] = 0
    loss = case.ours()
    torch.testing.assert_close(loss, case.reference())
    loss.backward()
    assert not case.embeddings.grad[2].any()
    assert not case.module.proxies.grad[1].any()
    assert torch.isfinite(case.embeddings.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_class(name):
    case = Case(name, 5, 1, 3)
    loss = case.ours()
    torch.testing.assert_close(loss, case.reference())
    loss.backward()
    assert torch.isfinite(case.embeddings.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_everything_rejected(name):
    case = Case(name, 5, 4, 3)
    case.weights = torch.zeros(5, dtype=torch.float64)
    loss = case.ours()
    torch.testing.assert_close(loss, case.reference())
    loss.backward()
    assert not case.embeddings.grad.any()


@pytest.mark.parametrize("scale", [1e-6, 1e12, 1e18])
def test_vectors_of_any_length(scale):
    case = Case("proxy-anchor", 6, 9, 4, dtype=torch.float32)
    expected = case.reference(torch.float64)
    with torch.no_grad():
        case.embeddings.mul_(scale)
        case.module.proxies.mul_(scale)
    loss = case.ours()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)


def test_dtensor_is_refused_with_the_way_out(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        local = DTensor.from_local(X, DeviceMesh("cpu", [0]), [Replicate()])
        with pytest.raises(TypeError, match=r"embeddings is a DTensor.*full_tensor\(\)"):
            ProxyAnchorLoss(6, 3)(local, Y)
    finally:
        dist.destroy_process_group()
