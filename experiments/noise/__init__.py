"""Noise models beyond the symmetric one, by name."""

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.noise.class_conditional import class_conditional
from experiments.noise.long_tailed import long_tailed
from experiments.noise.semantic import semantic
from experiments.noise.small_cluster import small_cluster
from experiments.taxonomy import tree_of
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.networks.preparation import prepare
from robustdml.noise import NOISES


def _features(data: RetrievalData) -> NDArray[np.float32]:
    """Features of the training split by the backbone that goes with the data, (N, F)."""
    with torch.random.fork_rng(devices=[]):
        made = prepare(TrainingConfig(), data, torch.device("cpu")).frozen_features()
    return made.astype(np.float32, copy=False)


NOISES |= {
    "small-cluster": lambda data, rate, seed: small_cluster(
        data.train.labels, rate, seed, data.train.num_classes, _features(data)
    ),
    "semantic": lambda data, rate, seed: semantic(data.train.labels, rate, seed, tree_of(data)),
    "long-tailed": lambda data, rate, seed: long_tailed(data.train.labels, rate, seed, data.train.num_classes),
    "class-conditional": lambda data, rate, seed: class_conditional(
        data.train.labels, rate, seed, data.train.num_classes, _features(data)
    ),
}
