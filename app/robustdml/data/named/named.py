"""What a data set with a name of its own is."""

from collections.abc import Callable
from dataclasses import dataclass

from robustdml.data.dataset import RetrievalData


@dataclass(frozen=True)
class NamedData:
    """A data set that `robustdml.data.load_data` knows by its name."""

    kind: str  # What its samples are, in a word or two: `letters`, `text`, …
    # Makes or reads it. Raises `UsageError` with the sentence that says what to install where something is missing.
    load: Callable[[], RetrievalData]
    backbone: str = ""  # The one that its images go through where none is chosen; empty for features
    # Tree of its classes for semantic noise, as in `experiments.taxonomy.load_taxonomy`; empty for none.
    taxonomy: str = ""
