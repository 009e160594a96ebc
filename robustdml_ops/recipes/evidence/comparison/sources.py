"""The data sets of a comparison: their features on the disk, and the noises that each can have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import load_data
from robustdml_ops.recipes.data.named import NAMED
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.evidence.comparison.outcomes import outcomes_of
from robustdml_ops.recipes.networks.origin import load_origin
from robustdml_ops.recipes.networks.preparation import prepare
from robustdml_ops.recipes.networks.stored_features import StoredFeatures, store_features
from robustdml_ops.recipes.progress import OnProgress
from robustdml_ops.recipes.run.noisy_labels import noisy_labels


@dataclass(frozen=True)
class Sources:
    """What a comparison trains on.

    Attributes
    ----------
    features : dict
        Of each data set by its name.
    missing : dict
        Named data sets that are not to be had here: what to install.
    """

    features: dict[str, StoredFeatures] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def open_sources(names: Sequence[str], device: torch.device, on_progress: OnProgress) -> Sources:
    """Load all data sets, one after the other, and leave their features on the disk.

    Parameters
    ----------
    names : sequence of str
        As `load_data` takes them.
    device : torch.device
        Where features of images are computed.
    on_progress : callable
        Told of the data sets, and of features being made.

    Returns
    -------
    Sources
        Where there are several, those that cannot be had here are told among `missing`.

    Raises
    ------
    UsageError
        No such data, or files that cannot be read; two data sets of one name; none at all.
    """
    sources = Sources()
    for number, name in enumerate(names):
        on_progress(f"data {name}", number, len(names))
        try:
            data = load_data(name)
            origin = load_origin(TrainingConfig(), data, device, on_progress)
            features = store_features(data, origin, device, on_progress)
        except UsageError as error:
            # A package or a font may be missing; a path that is wrong is to be put right before hours of training.
            if name not in NAMED or len(names) == 1:
                raise
            sources.missing[name] = str(error)
            continue
        if features.name in sources.features:
            raise UsageError(f"data {name!r}: a second one called {features.name}; rename one of the two")
        sources.features[features.name] = features
    if not sources.features:
        raise UsageError("; ".join(f"{name}: {reason}" for name, reason in sources.missing.items()))
    return sources


def impossible_noises(features: StoredFeatures, noises: Iterable[str], folder: Path) -> dict[str, str]:
    """Try which noises a data set can have: not all have a tree of classes, for one.

    Parameters
    ----------
    features : StoredFeatures
        The data set.
    noises : iterable of str
        Columns of the comparison.
    folder : Path
        Of the comparison; what has been run there need not be tried.

    Returns
    -------
    dict
        By noise what stands against it.
    """
    reasons = dict[str, str]()
    for noise in noises:
        if next(outcomes_of(folder, features.name, noise), None) is not None:
            continue
        config = TrainingConfig(noise=noise)
        try:
            noisy_labels(config, prepare(config, features.open(), torch.device("cpu")))
        except UsageError as error:
            reasons[noise] = str(error)
    return reasons
