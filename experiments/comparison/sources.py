"""The data sets of a comparison, as features or images on the disk, and the noises that each can have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.comparison.outcomes import outcomes_of
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split, load_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import Origin, default_image_size, load_origin
from robustdml.networks.stored_features import map_features, store_split
from robustdml.noise import with_wrong_labels
from robustdml.progress import OnProgress, silent


class Source(Protocol):
    """A reference to a data set, small to send; each process opens it for itself."""

    @property
    def name(self) -> str:
        """As in `RetrievalData`."""

    def open(self) -> RetrievalData:
        """Load the data; large files are memory-mapped."""


@dataclass(frozen=True)
class FeatureSource:
    """Data whose features are in files."""

    name: str
    files: tuple[Path, Path]  # `.npy` of training and test split, float32, (N, F)
    labels: tuple[NDArray[np.int64], NDArray[np.int64]]
    class_names: tuple[tuple[str, ...], tuple[str, ...]]

    def open(self) -> RetrievalData:
        """Map both splits into memory."""
        splits = zip(map(map_features, self.files), self.labels, self.class_names, strict=True)
        train, test = (Split(*parts) for parts in splits)
        return RetrievalData(self.name, train, test)


def feature_source(
    data: RetrievalData, origin: Origin, device: torch.device, on_progress: OnProgress = silent
) -> FeatureSource:
    """Put the features of both splits into the cache folder."""
    train, test = data.train, data.test
    files = (store_split(train, origin, device, on_progress), store_split(test, origin, device, on_progress))
    return FeatureSource(data.name, files, (train.labels, test.labels), (train.class_names, test.class_names))


@dataclass(frozen=True)
class ImageSource:
    """Images, for networks that are trained whole."""

    name: str  # As in `RetrievalData`
    path: str  # As `load_data` takes it
    image_size: int  # As `load_data` takes it

    def open(self) -> RetrievalData:
        """Load the images from the cache."""
        return load_data(self.path, image_size=self.image_size)


@dataclass(frozen=True)
class Sources:
    """The data sets of a comparison."""

    opened: dict[str, Source] = field(default_factory=dict)  # By name of the data set
    # Named data sets that cannot be loaded here, and what to install.
    missing: dict[str, str] = field(default_factory=dict)


def open_sources(
    names: Sequence[str], common: TrainingConfig, device: torch.device, on_progress: OnProgress
) -> Sources:
    """Load all data sets in turn; store features or pretrained networks for their runs."""
    sources = Sources()
    for number, name in enumerate(names):
        on_progress(f"data {name}", number, len(names))
        try:
            opened = _open(name, common, device, on_progress)
        except UsageError as error:
            # A named data set may lack a package or a font and is skipped; a wrong path raises.
            if name not in NAMED or len(names) == 1:
                raise
            sources.missing[name] = str(error)
            continue
        if opened.name in sources.opened:
            raise UsageError(f"data {name!r}: a second one called {opened.name}; rename one of the two")
        sources.opened[opened.name] = opened
    if not sources.opened:
        raise UsageError("; ".join(f"{name}: {reason}" for name, reason in sources.missing.items()))
    return sources


def _open(name: str, common: TrainingConfig, device: torch.device, on_progress: OnProgress) -> Source:
    image_size = default_image_size(common.backbone)
    data = load_data(name, image_size=image_size, on_progress=on_progress)
    origin = load_origin(common, data, device, on_progress)
    if common.finetune:
        return ImageSource(data.name, name, image_size)
    return feature_source(data, origin, device, on_progress)


def impossible_noises(source: Source, noises: Iterable[str], common: TrainingConfig, folder: Path) -> dict[str, str]:
    """The noises that a data set cannot have, such as semantic noise without a tree of classes, and why."""
    reasons = dict[str, str]()
    for noise in noises:
        if next(outcomes_of(folder, source.name, noise), None) is not None:
            continue
        try:
            with_wrong_labels(source.open(), noise, common.seed)
        except UsageError as error:
            reasons[noise] = str(error)
    return reasons
