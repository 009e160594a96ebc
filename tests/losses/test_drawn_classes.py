"""Which classes a step meets: those of the batch, and a share of the others, each as likely as any."""

import pytest
import torch

from robustdml_ops.engine.labels import ELSEWHERE
from robustdml_ops.losses import ArcFaceLoss, SoftTripleLoss
from robustdml_ops.losses.sampling import draw_classes
from tests.storages import Storages


def state(step=0, seed=0):
    return torch.tensor([seed, step])


@pytest.mark.parametrize(
    ("B", "C", "share"),
    [
        (5, 20, 0.3),
        (1, 2, 0.5),
        (3, 4, 0.01),
        (64, 40, 0.1),
        (40, 40, 0.5),
        (0, 9, 0.4),
        (7, 10**6, 1e-3),
        (9, 50, 0.99),
    ],
)
def test_distinct_classes_with_those_of_the_batch_first(B, C, share):
    generator = torch.Generator().manual_seed(B)
    for step in range(20):
        labels = torch.randint(C, (B,), generator=generator)
        drawn = draw_classes(labels, C, share, state(step))
        certain = min(B, C)
        others = max(1, round(share * (C - certain))) if certain < C else 0
        assert drawn.classes.shape == (certain + others,)
        assert len(drawn.classes.unique()) == len(drawn.classes)
        assert drawn.classes.numel() == 0 or 0 <= drawn.classes.min() <= drawn.classes.max() < C
        assert torch.equal(drawn.classes[drawn.labels], labels)
        assert drawn.certain == certain
        assert (drawn.labels < len(labels.unique())).all()
        weights = drawn.weights(torch.float64)
        # The weights are those of all classes together.
        torch.testing.assert_close(weights.sum(), torch.tensor(float(C), dtype=torch.float64))
        assert (weights[:certain] == 1).all()


def test_a_pure_function_of_seed_and_step():
    labels = torch.tensor([3, 3, 700, 12])

    def classes(step=0, seed=0):
        return draw_classes(labels, 1000, 0.1, state(step, seed)).classes

    assert torch.equal(classes(4, 5), classes(4, 5))
    first = set(classes().tolist())
    for other in (classes(step=1), classes(seed=1), classes(seed=2**40), classes(step=2**40)):
        assert len(first & set(other.tolist())) < 40  # of 104; by chance 13


@pytest.mark.parametrize(
    ("B", "C", "share"),
    [(5, 20, 0.3), (3, 4, 0.01), (64, 40, 0.1), (9, 9, 0.5), (0, 9, 0.4), (7, 90, 0.04), (6, 61, 0.97)],
)
@pytest.mark.parametrize("each", [1, 3, 7, 100])
def test_shards_draw_what_one_process_draws(B, C, share, each):
    """Each its own classes, with the same weights: however many, also where an interval reaches over several."""
    generator = torch.Generator().manual_seed(B)
    for step in range(6):
        labels = torch.randint(C, (B,), generator=generator)
        if step % 3 == 0:
            labels = labels.clamp(max=C // 3)  # none in the last shards
        whole = draw_classes(labels, C, share, state(step))
        weights = torch.zeros(C).index_copy(0, whole.classes, whole.weights(torch.float32))
        found = torch.zeros(C)
        for first in range(0, C + each, each):
            here = min(C, first), min(C, first + each)
            drawn = draw_classes(labels, C, share, state(step), here)
            found[here[0] : here[1]].index_add_(0, drawn.classes, drawn.weights(torch.float32))
            at = (labels >= here[0]) & (labels < here[1])
            assert torch.equal(drawn.classes[drawn.labels[at]] + here[0], labels[at])
            assert (drawn.labels[~at] == ELSEWHERE).all()
        assert torch.equal(found, weights)


def test_the_work_of_a_shard_is_that_of_its_own_classes():
    """No tensor of the size of all that are drawn."""
    labels, C = torch.arange(8), 10**6
    with Storages([labels]) as storages:
        drawn = draw_classes(labels, C, 0.1, state(), (500_000, 510_000))
    assert 990 < len(drawn.classes) < 1010
    assert storages.largest < 20_000


@pytest.mark.parametrize(("C", "share"), [(24, 0.3), (37, 0.1)])
def test_each_class_counts_once_on_average(C, share):
    """Sum of weights over many steps, for each class, against its binomial error."""
    labels, steps = torch.tensor([5, 5, 0, 5]), 1000
    total, squares = torch.zeros(C, dtype=torch.float64), torch.zeros(C, dtype=torch.float64)
    for step in range(steps):
        drawn = draw_classes(labels, C, share, state(step, seed=1))
        weights = drawn.weights(torch.float64)
        total[drawn.classes] += weights
        squares[drawn.classes] += weights**2
    mean = total / steps
    error = ((squares / steps - mean**2) / steps).sqrt()
    present = torch.zeros(C, dtype=torch.bool).scatter(0, labels, True)
    assert (mean[present] == 1).all()
    z = (mean[~present] - 1) / error[~present]
    assert z.abs().max() < 4
    # The squares of a normal number of each class; without the weights their mean would be in the hundreds.
    assert 0.3 < z.square().mean() < 2


def test_the_values_of_a_class_lie_side_by_side_where_classes_are_drawn():
    """Also where an own function fills them, which sees the (D, C) that it would see without a draw."""
    sampled = ArcFaceLoss(1000, 8, negative_share=0.1)
    assert sampled.W.shape == (8, 1000) and sampled.W.stride() == (1, 8)
    assert ArcFaceLoss(1000, 8).W.stride() == (1000, 1)
    assert abs(float(sampled.W.detach().std()) - 1) < 0.05
    assert SoftTripleLoss(100, 8, centers_per_class=2, negative_share=0.1).fc.stride() == (1, 8)
    shapes = []
    ArcFaceLoss(10, 8, negative_share=0.1, weight_init_func=lambda weight: shapes.append(weight.shape))
    assert shapes == [(8, 10)]
