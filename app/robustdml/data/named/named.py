"""What a data set with a name of its own is."""

from collections.abc import Callable
from dataclasses import dataclass

from robustdml.data.dataset import RetrievalData, Split


@dataclass(frozen=True)
class Pretraining:
    """Data that a small backbone is pretrained on: other characters than those of the data set."""

    load: Callable[[], Split]  # Returns grey images of 32×32 pixels and their classes
    key: Callable[[], str]  # Returns a text that changes where these images do


@dataclass(frozen=True)
class NamedData:
    """A data set that `robustdml.data.load_data` knows by its name."""

    kind: str  # What its samples are, in a word or two: `letters`, `text`, …
    # Makes or reads it. Raises `UsageError` with the sentence that says what to install where something is missing.
    load: Callable[[], RetrievalData]
    backbone: str = ""  # The one that its images go through where none is chosen; empty for features
    pretraining: Pretraining | None = None  # Data for that backbone, where it is a small one trained here
