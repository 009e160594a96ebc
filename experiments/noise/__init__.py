"""Noise models beyond the symmetric one, by name."""

from experiments.noise.class_conditional import class_conditional
from experiments.noise.long_tailed import long_tailed
from experiments.noise.semantic import semantic
from experiments.noise.small_cluster import small_cluster
from experiments.taxonomy import tree_of
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.networks.preparation import resolve_device, untouched_features
from robustdml.noise import NOISES, with_wrong_labels

NOISES |= {
    "small-cluster": lambda data, rate, seed, features: small_cluster(
        data.train.labels, rate, seed, data.train.num_classes, features()
    ),
    "semantic": lambda data, rate, seed, _: semantic(data.train.labels, rate, seed, tree_of(data)),
    "long-tailed": lambda data, rate, seed, _: long_tailed(data.train.labels, rate, seed, data.train.num_classes),
    "class-conditional": lambda data, rate, seed, features: class_conditional(
        data.train.labels, rate, seed, data.train.num_classes, features()
    ),
}


def noisy_data(config: TrainingConfig, data: RetrievalData, noise: str) -> RetrievalData:
    """The data with wrong training labels, by the seed of a run and the features of its untouched backbone."""
    cpu = resolve_device("cpu")
    return with_wrong_labels(data, noise, config.seed, lambda: untouched_features(config, data, cpu))
