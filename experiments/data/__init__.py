"""Data sets by name, beside the application's glyphs: each file declares its own in a ``NAMED``."""

from importlib import import_module

from robustdml.data.named import NAMED

# In the order in which messages name them.
_FILES = ("hanzi", "hangul", "digits", "glosses", "tables", "signals", "sounds", "code", "mixtures", "stamps")

for _file in _FILES:
    NAMED |= import_module(f"{__name__}.{_file}").NAMED
