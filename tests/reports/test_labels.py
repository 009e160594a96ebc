"""Labels of every kind that a loader of data may give."""

import pytest
import torch

from robustdml_ops.losses import ArcFaceLoss, MultiSimilarityLoss, ProxyAnchorLoss, SupConLoss
from tests.every_call import LOSSES, B, C, D, random

WITH_LABELS = [name for name, call in LOSSES.items() if "labels" in call.inputs()]
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("name", WITH_LABELS)
def test_unsigned_labels(name, dtype):
    call = LOSSES[name]
    torch.manual_seed(0)
    loss = call.make()
    torch.manual_seed(0)
    other = call.make()
    labels = call.inputs()["labels"]
    torch.testing.assert_close(call(loss, labels=labels.to(dtype)), call(other, labels=labels))


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("make", [lambda: ArcFaceLoss(C, D, ignore_index=2), lambda: SupConLoss(ignore_index=2)])
def test_unsigned_labels_with_one_to_ignore(make, dtype):
    torch.manual_seed(0)
    loss, X, labels = make(), random(B, D), torch.arange(B) % C
    torch.testing.assert_close(loss(X, labels.to(dtype)), loss(X, labels))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_several_unsigned_labels(dtype):
    loss, X, labels = (
        ProxyAnchorLoss(C, D),
        random(B, D),
        torch.stack([torch.arange(B) % C, (torch.arange(B) + 1) % C], 1),
    )
    torch.testing.assert_close(loss(X, labels.to(dtype)), loss(X, labels))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_labels_beside_signed_ones(dtype):
    loss, X, others, labels = MultiSimilarityLoss(), random(B, D), random(B, D, seed=1), torch.arange(B) // 2
    expected = loss(X, labels, None, others, labels + 1)
    torch.testing.assert_close(loss(X, labels.to(dtype), None, others, labels + 1), expected)
    torch.testing.assert_close(loss(X, labels, None, others, (labels + 1).to(dtype)), expected)


@pytest.mark.parametrize("make", [lambda: ArcFaceLoss(C, D), MultiSimilarityLoss])
def test_labels_beyond_int64_are_refused(make):
    """As int64, 2⁶³ would be the label of what is absent."""
    labels = torch.tensor([2**63, 2**63, *range(B - 2)], dtype=torch.uint64)
    with pytest.raises(ValueError, match=rf"labels must be below 2\*\*63, got {2**63}: number them"):
        make()(random(B, D), labels)
