"""The data sets that have names: each file here declares its own, in a ``NAMED`` of name and `NamedData`.

Of each there are two: ``NAME`` to report on, and ``NAME-validation`` to choose settings by, which holds no class that
``NAME`` is tested on.
"""

from importlib import import_module

from robustdml.data.named.named import NamedData

__all__ = ["NAMED", "NamedData"]

# In the order in which messages name them.
_FILES = ("glyphs",)

# Data sets by the name that `--data` takes.
NAMED: dict[str, NamedData] = {
    name: data for file in _FILES for name, data in import_module(f"{__name__}.{file}").NAMED.items()
}
