import numpy as np
import pytest

from robustdml.data.samplers import LEAST_STEPS, ClassBalancedSampler, RandomSampler
from robustdml.errors import UsageError


def test_random_batches_cover_an_epoch_once():
    batches = list(RandomSampler(103, 10, seed=0).batches(0))
    assert [len(batch) for batch in batches] == [10] * 10
    assert len(np.unique(np.concatenate(batches))) == 100


def test_few_samples_are_passed_several_times():
    batches = list(RandomSampler(7, 10, seed=0).batches(3))
    assert [sorted(batch) for batch in batches] == [list(range(7))] * LEAST_STEPS
    assert len({tuple(batch) for batch in batches}) == LEAST_STEPS
    batches = list(RandomSampler(27, 10, seed=0).batches(0))
    assert [len(np.unique(np.concatenate(two))) for two in (batches[:2], batches[2:])] == [20, 20]


def test_balanced_batches_have_p_classes_of_k():
    labels = np.repeat([0, 1, 3, 4, 9], [30, 2, 20, 5, 40])
    sampler = ClassBalancedSampler(labels, 16, 4, seed=0)
    batches = list(sampler.batches(0))
    assert len(batches) == len(sampler) == 97 // 16
    for batch in batches:
        classes, counts = np.unique(labels[batch], return_counts=True)
        assert len(classes) == 4
        assert (counts == 4).all()
        # Only the class of two samples repeats any.
        large = batch[labels[batch] != 1]
        assert len(np.unique(large)) == len(large)


@pytest.mark.parametrize(
    "make",
    [lambda seed: RandomSampler(50, 8, seed), lambda seed: ClassBalancedSampler(np.arange(50) % 5, 10, 2, seed)],
)
def test_batches_depend_on_seed_and_epoch_alone(make):
    def flat(seed, epoch):
        return np.concatenate(list(make(seed).batches(epoch)))

    sampler = make(1)
    list(sampler.batches(0))
    assert np.array_equal(np.concatenate(list(sampler.batches(2))), flat(1, 2))
    assert not np.array_equal(flat(1, 2), flat(1, 3))
    assert not np.array_equal(flat(1, 2), flat(2, 2))


def test_bad_arguments():
    with pytest.raises(UsageError, match="samples_per_class=3 must divide the batch size 10"):
        ClassBalancedSampler(np.arange(50) % 5, 10, 3, 0)
    with pytest.raises(UsageError, match=r"only 5 classes have samples; use a batch size of at most 10"):
        ClassBalancedSampler(np.arange(50) % 5, 12, 2, 0)
    with pytest.raises(UsageError, match="num_samples=0"):
        RandomSampler(0, 4, 0)
