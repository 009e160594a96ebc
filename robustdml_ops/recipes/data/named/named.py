"""What a data set with a name of its own is."""

from collections.abc import Callable
from dataclasses import dataclass

from robustdml_ops.recipes.data.dataset import RetrievalData


@dataclass(frozen=True)
class NamedData:
    """A data set that `robustdml_ops.recipes.data.load_data` knows by its name.

    Attributes
    ----------
    kind : str
        What its samples are, in a word or two: ``letters``, ``text``, ….
    load : callable
        Makes or reads it. Raises `UsageError` with the sentence that says what to install where something is missing.
    backbone : str
        The one that its images go through where none is chosen; empty for features.
    taxonomy : str
        Tree of its classes for semantic noise, as in `robustdml_ops.recipes.taxonomy.load_taxonomy`; empty for none.
    """

    kind: str
    load: Callable[[], RetrievalData]
    backbone: str = ""
    taxonomy: str = ""
