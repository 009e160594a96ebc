"""What users of this and of other libraries reported of inputs: types, lengths, layouts, labels, and what is missing.

A thread is named as project and number where one was found; the words and the cases are ours.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from robustdml_ops.losses import (
    ArcFaceLoss,
    ContrastiveLoss,
    CosFaceLoss,
    MultiSimilarityLoss,
    NormalizedSoftmaxLoss,
    NTXentLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SupConLoss,
)
from tests.every_call import LOSSES, B, C, D, labels, random

CLASSES = [ArcFaceLoss, CosFaceLoss, NormalizedSoftmaxLoss, ProxyAnchorLoss, ProxyNCALoss]
PAIRS = [ContrastiveLoss, MultiSimilarityLoss, NTXentLoss, SupConLoss]
SINGLE = torch.float32


def gradient(loss, X, *arguments, **options):
    """The value and the embeddings' gradient."""
    X = X.detach().clone().requires_grad_()
    value = loss(X, *arguments, **options)
    return value.detach(), torch.autograd.grad(value.sum(), X)[0]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_type_and_the_range(kind, dtype):
    """pytorch-metric-learning 209, insightface 2200: NaN in the class matrix after some steps in float16."""
    loss = kind(C, D)
    value, found = gradient(loss, random(B, D, dtype=dtype), labels())
    assert value.dtype == SINGLE
    assert found.dtype == dtype
    assert value.isfinite()
    assert found.isfinite().all()
    assert {parameter.dtype for parameter in loss.parameters()} == {SINGLE}


def test_mining_under_autocast():
    """pytorch-metric-learning 233: a limit of float32 did not fit into the half precision of the similarities."""
    X = random(B, D, dtype=SINGLE)
    with torch.autocast("cpu", torch.bfloat16):
        value = MultiSimilarityLoss(epsilon=0.1)(X, labels())
    torch.testing.assert_close(value, MultiSimilarityLoss(epsilon=0.1)(X, labels()), rtol=0.02, atol=0.02)


def test_a_sample_that_is_its_class_vector():
    """insightface 1555: the derivative of the angle has a pole there, and the loss becomes NaN."""
    loss = ArcFaceLoss(C, D)
    value, found = gradient(loss, loss.W.detach().t()[labels()], labels())
    assert value.isfinite()
    assert found.isfinite().all()


@pytest.mark.parametrize("convert", [torch.Tensor.double, torch.Tensor.int, torch.Tensor.short])
@pytest.mark.parametrize("kind", CLASSES)
def test_labels_of_another_type(kind, convert):
    """insightface 1437: labels as a loader gives them trained nothing, and nobody said so."""
    loss, X = kind(C, D).double(), random(B, D)
    torch.testing.assert_close(loss(X, convert(labels())), loss(X, labels()))


@pytest.mark.parametrize("kind", PAIRS)
def test_labels_of_any_size(kind):
    """pytorch-metric-learning 744: large labels were thought to change the loss."""
    X = random(B, D)
    torch.testing.assert_close(kind()(X, labels() * 10**17 - 5), kind()(X, labels()))


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("y", [torch.zeros(B, dtype=torch.int64), torch.arange(B)], ids=["one class", "all apart"])
def test_a_batch_without_negatives_or_without_positives(kind, y):
    """pytorch-metric-learning 272, SupContrast 141: a crash, or NaN."""
    value, found = gradient(kind(), random(B, D), y)
    assert value.isfinite()
    assert found.isfinite().all()


def test_a_class_of_one_sample():
    """SupContrast 141: no positive, so 0 for that sample, and the others as without it in the mean."""
    losses = SupConLoss(reduction="none")(random(5, D), torch.tensor([0, 0, 1, 1, 2]))
    assert losses[4] == 0
    assert (losses[:4] > 0).all()


@pytest.mark.parametrize("kind", PAIRS)
def test_a_miner_that_found_nothing(kind):
    """pytorch-metric-learning 95: an empty list of pairs raised."""
    nothing = torch.zeros(0, dtype=torch.int64)
    value, found = gradient(kind(), random(B, D), labels(), (nothing,) * 4)
    assert value == 0
    assert (found == 0).all()


def test_no_pair_that_is_still_wrong():
    """pytorch-metric-learning 98 and 107: a mean over nothing was NaN, or divided by 10⁻¹⁶."""
    X, y = torch.eye(4, dtype=torch.float64).repeat(2, 1), torch.arange(4).repeat(2)
    value, found = gradient(ContrastiveLoss(), X, y)
    assert value == 0
    assert (found == 0).all()


@pytest.mark.parametrize("kind", CLASSES)
def test_a_batch_whose_labels_are_all_ignored(kind):
    """pytorch 70348: NaN as the mean over nothing."""
    value, found = gradient(kind(C, D, ignore_index=-100).double(), random(B, D), torch.full((B,), -100))
    assert value == 0
    assert (found == 0).all()


@pytest.mark.parametrize("name", ["ArcFaceLoss", "ProxyAnchorLoss", "SupConLoss", "MultiSimilarityLoss"])
def test_an_empty_batch(name):
    loss = LOSSES[name].make()
    value, found = gradient(loss, random(0, D), torch.zeros(0, dtype=torch.int64))
    assert value == 0
    assert found.shape == (0, D)


def test_steep_logits():
    """pytorch 11752: large logits lost the loss altogether."""
    X, loss = random(B, D, dtype=SINGLE), NormalizedSoftmaxLoss(C, D, temperature=1e-4)
    logits = normalize(X.double()) @ normalize(loss.W.detach().double(), dim=0) / 1e-4
    torch.testing.assert_close(loss(X, labels()).double(), cross_entropy(logits, labels()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("length", [1e-18, 1e18])
@pytest.mark.parametrize("kind", PAIRS)
def test_embeddings_that_are_not_normalised(kind, length):
    """SupContrast 104: NaN for rows that are not of length 1."""
    X = random(B, D, dtype=SINGLE)
    torch.testing.assert_close(kind()(length * X, labels()), kind()(X, labels()), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["ArcFaceLoss", "ProxyAnchorLoss", "SupConLoss", "MultiSimilarityLoss"])
@pytest.mark.parametrize(
    "layout",
    [lambda X: X.t().contiguous().t(), lambda X: torch.stack([X, X], 2)[..., 0], lambda X: X.flip(0).flip(0)],
    ids=["columns", "every other", "copied"],
)
def test_embeddings_of_other_layouts(name, layout):
    """pytorch 69997, optimized-fused-ssim 1: wrong gradients, or a crash, of tensors that are not contiguous."""
    loss, X = LOSSES[name].make(), random(B, D)
    expected = gradient(loss, X, labels())
    leaf = X.clone().requires_grad_()
    value = loss(layout(leaf), labels())
    torch.testing.assert_close((value.detach(), torch.autograd.grad(value, leaf)[0]), expected)


@pytest.mark.parametrize("kind", CLASSES[:3])
def test_losses_of_samples_with_weights_of_a_program(kind):
    """Liger-Kernel 968, pytorch 64529: one upstream gradient for all, or one that is expanded."""
    loss, X, weights = kind(C, D, reduction="none").double(), random(B, D), random(B, seed=3)
    leaf = X.clone().requires_grad_()
    (weighted,) = torch.autograd.grad((loss(leaf, labels()) * weights).sum(), leaf)
    single = [torch.autograd.grad(loss(leaf, labels())[i], leaf)[0] * weights[i] for i in range(B)]
    torch.testing.assert_close(weighted, sum(single))
    (expanded,) = torch.autograd.grad(torch.cat([loss(leaf, labels())] * 2).sum(), leaf)
    torch.testing.assert_close(expanded, 2 * torch.autograd.grad(loss(leaf, labels()).sum(), leaf)[0])


def test_fixed_pairs_of_two_tensors():
    """pytorch-metric-learning 509: rows that belong together, or not, without labels."""
    X, others, together = random(B, D), random(B, D, seed=1), torch.arange(B) % 3 == 0
    p, n = together.nonzero()[:, 0], (~together).nonzero()[:, 0]
    distances = (normalize(X) - normalize(others)).norm(dim=1)
    expected = distances[p].mean() + (1 - distances[n]).clamp(min=0)[distances[n] < 1].sum() / max(
        1, int((distances[n] < 1).sum())
    )
    found = ContrastiveLoss()(X, indices_tuple=(p, p, n, n), ref_emb=others)
    torch.testing.assert_close(found, expected)


def test_a_loss_that_was_left_on_another_device():
    """pytorch-metric-learning 139: the error did not say what to move."""
    with pytest.raises(ValueError, match=r"embeddings on cpu, proxies on meta: move them, or the loss, with \.to"):
        ProxyAnchorLoss(C, D).to("meta")(random(B, D, dtype=SINGLE), labels())
