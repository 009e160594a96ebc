"""The labels of a run with their noise, and what the noise models ask for beside the true ones."""

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData
from robustdml_ops.recipes.data.named import NAMED
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.networks.preparation import Prepared
from robustdml_ops.recipes.noise import NoiseSources, apply_noise
from robustdml_ops.recipes.noise.shares import NoisyLabels
from robustdml_ops.recipes.taxonomy import ClassTree, load_taxonomy


def noisy_labels(config: TrainingConfig, prepared: Prepared) -> NoisyLabels:
    """Apply the noise of a run to the training labels.

    Parameters
    ----------
    config : TrainingConfig
        Noise, taxonomy and seed.
    prepared : Prepared
        Data; the features of its untouched backbone say which samples look alike.

    Returns
    -------
    tuple of ndarray
        Noisy labels, int64, (N,), and the mask of what was changed.

    Raises
    ------
    UsageError
        Noise that does not fit the data.
    """
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
