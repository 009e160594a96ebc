"""The batches of a run: random ones, or some samples each of some classes."""

import numpy as np
from numpy.typing import NDArray

from robustdml.config import TrainingConfig
from robustdml.data.samplers import ClassBalancedSampler, RandomSampler
from robustdml.methods import METHODS


def make_sampler(config: TrainingConfig, labels: NDArray[np.int64]) -> RandomSampler | ClassBalancedSampler:
    """Make the batches of an epoch, as many as the samples with these labels fill."""
    method, batch_size = METHODS[config.method], config.batch_size
    samples_per_class = method.samples_per_class if config.samples_per_class is None else config.samples_per_class
    if samples_per_class == 0:
        return RandomSampler(len(labels), batch_size, config.seed)
    if config.samples_per_class is None:
        # By default too few classes for a batch give more samples each, because small batches have few negatives.
        sizes = np.unique(labels, return_counts=True)[1]
        classes = max(min(batch_size // samples_per_class, len(sizes)), 1)
        samples_per_class = max(samples_per_class, min(batch_size // classes, int(sizes.max(initial=1))))
        batch_size = samples_per_class * classes
    return ClassBalancedSampler(labels, batch_size, samples_per_class, config.seed)
