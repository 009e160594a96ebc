"""Batches of sample numbers: pure functions of seed and epoch, so that a resumed run has nothing to restore."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from robustdml.arrays import Labels, Rows
from robustdml.data.dataset import members_of_classes
from robustdml.errors import UsageError

# An epoch has at least so many batches: small data need steps, not passes.
LEAST_STEPS = 4


@dataclass(frozen=True)
class RandomSampler:
    """Every sample once a pass, in random order; a last batch that would be smaller is left out.

    An epoch is a pass, or as many as `LEAST_STEPS` need.
    """

    num_samples: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.num_samples < 1 or self.batch_size < 1:
            raise UsageError(f"num_samples={self.num_samples}, batch_size={self.batch_size}: expected at least 1")

    def __len__(self) -> int:
        return max(self.num_samples // self.batch_size, LEAST_STEPS)

    def batches(self, epoch: int) -> Iterator[Rows]:
        """Batches of one epoch."""
        random, of_pass = np.random.default_rng((self.seed, epoch)), max(self.num_samples // self.batch_size, 1)
        for batch in range(len(self)):
            if batch % of_pass == 0:
                order = random.permutation(self.num_samples)
            start = batch % of_pass * self.batch_size
            yield order[start : start + self.batch_size]


class ClassBalancedSampler:
    """Batches of P random classes with K random samples each; repeats samples of classes smaller than K.

    An epoch has as many batches as the samples fill, and at least `LEAST_STEPS`.
    """

    def __init__(self, labels: Labels, batch_size: int, samples_per_class: int, seed: int) -> None:
        if samples_per_class < 1 or batch_size < 1 or batch_size % samples_per_class:
            raise UsageError(
                f"samples_per_class={samples_per_class} must divide the batch size {batch_size}; samples_per_class 0 "
                "gives random batches"
            )
        members = members_of_classes(labels, int(labels.max(initial=-1)) + 1)
        self._members = [member for member in members if len(member)]
        self._classes_per_batch = batch_size // samples_per_class
        self._samples_per_class = samples_per_class
        self._num_batches = max(len(labels) // batch_size, LEAST_STEPS)
        self._seed = seed
        if len(self._members) < self._classes_per_batch:
            raise UsageError(
                f"batches of {self._classes_per_batch} classes × {samples_per_class} samples, but only "
                f"{len(self._members)} classes have samples;"
                f" use a batch size of at most {len(self._members) * samples_per_class}"
            )

    def __len__(self) -> int:
        return self._num_batches

    def batches(self, epoch: int) -> Iterator[Rows]:
        """Batches of one epoch."""
        random = np.random.default_rng((self._seed, epoch))
        size = self._samples_per_class
        for _ in range(self._num_batches):
            classes = random.choice(len(self._members), self._classes_per_batch, replace=False)
            members = [self._members[c] for c in classes]
            yield np.concatenate([random.choice(m, size, replace=len(m) < size) for m in members])


def make_sampler(
    labels: Labels, batch_size: int, asked: int | None, usual: int, seed: int
) -> RandomSampler | ClassBalancedSampler:
    """Make the batches of an epoch, as many as the samples fill, with `asked` or else `usual` of a class; 0: random."""
    samples_per_class = usual if asked is None else asked
    if samples_per_class == 0:
        return RandomSampler(len(labels), batch_size, seed)
    if asked is None:
        # By default too few classes for a batch give more samples each, because small batches have few negatives.
        sizes = np.unique(labels, return_counts=True)[1]
        classes = max(min(batch_size // samples_per_class, len(sizes)), 1)
        samples_per_class = max(samples_per_class, min(batch_size // classes, int(sizes.max(initial=1))))
        batch_size = samples_per_class * classes
    return ClassBalancedSampler(labels, batch_size, samples_per_class, seed)
