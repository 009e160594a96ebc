"""The data sets of a comparison, features or images on the disk, and the noises that each can have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import RetrievalData, load_data
from robustdml_ops.recipes.data.named import NAMED
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.evidence.comparison.outcomes import outcomes_of
from robustdml_ops.recipes.networks.backbones.choice import default_image_size
from robustdml_ops.recipes.networks.origin import load_origin
from robustdml_ops.recipes.networks.preparation import prepare
from robustdml_ops.recipes.networks.stored_features import store_features
from robustdml_ops.recipes.progress import OnProgress
from robustdml_ops.recipes.run.noisy_labels import noisy_labels


class Source(Protocol):
    """A data set that each process opens for itself: small to send."""

    @property
    def name(self) -> str:
        """As in `RetrievalData`."""

    def open(self) -> RetrievalData:
        """Give the data, mapped into memory where they are large."""


@dataclass(frozen=True)
class ImageSource:
    """Images, for networks that train as a whole.

    Attributes
    ----------
    name : str
        As in `RetrievalData`.
    path : str
        As `load_data` takes it.
    image_size : int
        As `load_data` takes it.
    """

    name: str
    path: str
    image_size: int

    def open(self) -> RetrievalData:
        """Load the images, which have been made or decoded once.

        Returns
        -------
        RetrievalData
            Images.
        """
        return load_data(self.path, image_size=self.image_size)


@dataclass(frozen=True)
class Sources:
    """What a comparison trains on.

    Attributes
    ----------
    opened : dict
        Of each data set by its name.
    missing : dict
        Named data sets that are not to be had here: what to install.
    """

    opened: dict[str, Source] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def open_sources(
    names: Sequence[str], common: TrainingConfig, device: torch.device, on_progress: OnProgress
) -> Sources:
    """Load all data sets, one after the other, and leave what runs share on the disk: features, or pretrained networks.

    Parameters
    ----------
    names : sequence of str
        As `load_data` takes them.
    common : TrainingConfig
        Settings that all runs share: whether the backbone trains, and which it is.
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
        No such data, or files that cannot be read; features where a backbone is to train; two data sets of one name;
        none at all.
    """
    sources = Sources()
    for number, name in enumerate(names):
        on_progress(f"data {name}", number, len(names))
        try:
            opened = _open(name, common, device, on_progress)
        except UsageError as error:
            # A package or a font may be missing; a path that is wrong is to be put right before hours of training.
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
    return store_features(data, origin, device, on_progress)


def impossible_noises(source: Source, noises: Iterable[str], common: TrainingConfig, folder: Path) -> dict[str, str]:
    """Try which noises a data set can have: not all have a tree of classes, for one.

    Parameters
    ----------
    source : Source
        The data set.
    noises : iterable of str
        Columns of the comparison.
    common : TrainingConfig
        As in `open_sources`.
    folder : Path
        Of the comparison; what has been run there need not be tried.

    Returns
    -------
    dict
        By noise what stands against it.
    """
    reasons = dict[str, str]()
    for noise in noises:
        if next(outcomes_of(folder, source.name, noise), None) is not None:
            continue
        config = replace(common, noise=noise)
        try:
            noisy_labels(config, prepare(config, source.open(), torch.device("cpu")))
        except UsageError as error:
            reasons[noise] = str(error)
    return reasons
