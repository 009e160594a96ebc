"""The labels of a run with their noise, and what the noise models ask for beside the true ones."""

from experiments.taxonomy import ClassTree, load_taxonomy
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.data.named import NAMED
from robustdml.errors import UsageError
from robustdml.networks.preparation import Prepared
from robustdml.noise import NoiseSources, apply_noise
from robustdml.noise.shares import NoisyLabels


def noisy_labels(config: TrainingConfig, prepared: Prepared) -> NoisyLabels:
    """Apply the noise of a run to the training labels."""
    train = prepared.data.train
    sources = NoiseSources(prepared.frozen_features, lambda: _taxonomy(config, prepared.data))
    return apply_noise(config.noise, train.labels, config.seed, train.num_classes, sources)


def _taxonomy(config: TrainingConfig, data: RetrievalData) -> ClassTree:
    source = config.taxonomy or (NAMED[data.name].taxonomy if data.name in NAMED else "")
    if not source:
        raise UsageError(
            f"noise {config.noise!r} needs a tree of the classes of {data.name}: give one (taxonomy: wordnet, "
            "wordnet:ROOT or a file)"
        )
    return load_taxonomy(source, data.train.class_names)
