"""The data sets that `--data` takes by name.

Report on ``NAME``; choose settings on ``NAME-validation``, which shares no class with the test classes of ``NAME``.
"""

from robustdml.data.named.glyphs import NAMED
from robustdml.data.named.named import NamedData, Pretraining

__all__ = ["NAMED", "NamedData", "Pretraining"]
