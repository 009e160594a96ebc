"""Loading data by name or path."""

import os
from pathlib import Path

from robustdml.data.dataset import RetrievalData
from robustdml.data.features import load_features
from robustdml.data.folders import load_images
from robustdml.data.image_files import DEFAULT_IMAGE_SIZE
from robustdml.data.lists import ANY_COLUMNS, LISTS, Columns, is_list
from robustdml.data.named import NAMED
from robustdml.data.readings import Reading
from robustdml.errors import UsageError, did_you_mean, expanded
from robustdml.progress import OnProgress, silent


def expected_data() -> str:
    """Say what `load_data` takes."""
    reported_on = ", ".join(name for name in NAMED if not name.endswith("-validation"))
    return (
        f"{reported_on} (each also as NAME-validation), a folder of class folders (or of train and test), a list of "
        f"images ({LISTS} with the columns path and label), or an .npz file of features"
    )


def existing(source: str, expected: str) -> Path:
    """Path of a file or folder; refuse one that is not there."""
    if not source:
        raise UsageError(f"data is empty: expected {expected}")
    path = expanded(source)
    if path.exists():
        return path
    beside = os.listdir(path.parent) if path.parent.is_dir() else []
    broken = f", for it is a link to {path.readlink()}, which is missing" if path.is_symlink() else ""
    hint = did_you_mean(path.name, [*NAMED, *beside])
    raise UsageError(f"data {source!r}: no such file or folder{broken}; expected {expected}{hint}")


def load_data(
    source: str,
    *,
    image_size: int = DEFAULT_IMAGE_SIZE,
    test_fraction: float = 0.5,
    split_seed: int = 0,
    skip_broken: bool = False,
    columns: Columns = ANY_COLUMNS,
    reading: Reading | None = None,
    features: str = "",
    on_progress: OnProgress = silent,
) -> RetrievalData:
    """Load data by name (`robustdml.data.named.NAMED`) or path: a folder or list of images, or a file of features.

    Images are brought to `image_size` pixels a side. Where the source has no test part of its own, `test_fraction` is
    the share of the *classes* kept for testing, chosen by `split_seed`; with 0 all train, and they are tested on. With
    `skip_broken` images that cannot be read and rows that lack path or label are left out rather than refused, and
    `RetrievalData.left_out` names them. `RetrievalData.notes` says what was passed over, and which test images are
    copies of training images. `columns` names the columns of a list that are called otherwise than `path`, `label` and
    `split`. With `reading` images are read through a network as well, for a run that takes its features; see
    `robustdml.networks.preparation.reading_for`; with `features`, a table, they are joined to features of another tool
    by their paths, and not decoded. A source that cannot be read raises `UsageError`.

    Examples
    --------
    >>> load_data("glyphs").train.num_classes  # doctest: +SKIP
    200
    """
    if not 0 <= test_fraction < 1:
        raise UsageError(f"test_fraction={test_fraction}: expected a share of the classes from 0 to less than 1")
    if features and (source in NAMED or source.lower().endswith(".npz")):
        raise UsageError(f"features {features}: data {source!r} has no files of images that they could be joined to")
    if source in NAMED:
        return NAMED[source].load()
    path = existing(source, expected_data())
    if path.is_dir() or is_list(path):
        if image_size < 1:
            raise UsageError(f"image_size={image_size}: expected at least 1")
        reading = reading or Reading(image_size)
        return load_images(path, reading, test_fraction, split_seed, skip_broken, columns, features, on_progress)
    if path.suffix.lower() != ".npz":
        raise UsageError(f"data {source!r}: a file of another kind; expected {expected_data()}")
    return load_features(path, test_fraction=test_fraction, split_seed=split_seed)
