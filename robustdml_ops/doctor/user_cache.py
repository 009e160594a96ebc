"""Where what can be made again is kept."""

import os
from pathlib import Path


def user_cache() -> Path:
    """``ROBUSTDML_CACHE``, else ``robustdml_ops`` in ``XDG_CACHE_HOME`` or ``~/.cache``; it may not exist yet.

    Raises RuntimeError where none is set and the user has no home, as in a container whose user is a number without a
    name.
    """
    if chosen := os.environ.get("ROBUSTDML_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "robustdml_ops"
