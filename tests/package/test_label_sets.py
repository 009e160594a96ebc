"""Labels that came from a GPU are sorted where the CPU walks the classes."""

import pytest
import torch

from robustdml_ops.ops import ABSENT, AnchorBiases, LabelSets, anchor_lse

B, C, D = 6, 4, 5


def test_labels_that_came_from_a_gpu_are_sorted_where_that_is_needed(backend):
    bias, y = torch.zeros(B), torch.tensor([3, 0, 1, 3, 2, 0])
    X, P = torch.randn(B, D), torch.randn(C, D)
    unsorted, kept = (
        anchor_lse(X, P, sets, AnchorBiases(bias, bias), alpha=2.0, backend=backend)
        for sets in (LabelSets(y), LabelSets.of(y))
    )
    assert torch.equal(unsorted.positive, kept.positive)
    assert torch.equal(unsorted.negative, kept.negative)
    F32, present = torch.float32, torch.tensor([True, False, True, True, False, False])
    assert LabelSets(y).count(None, F32) == LabelSets.of(y).count(None, F32) == 4
    assert LabelSets(y).count(present, F32) == 2
    assert LabelSets(y).count(present & False, F32) == 1
    assert LabelSets(y).count(present | True, F32) == 4


@pytest.mark.parametrize("count", [1, 5, 300, 3000])
def test_sorted_stably_and_counted(count):
    y = torch.randint(-2, 40, (count,)).masked_fill(torch.rand(count) < 0.1, ABSENT)
    sets, (ordered, order) = LabelSets.of(y), torch.sort(y, stable=True)
    assert torch.equal(sets.sorted_labels, ordered)
    assert torch.equal(sets.order, order)
    assert sets.count(None, torch.float32) == len(y.unique())
