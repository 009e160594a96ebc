"""Programs of this Python's environment, before those of the machine."""

import os
import sys
from pathlib import Path


def search_path() -> str:
    """A ``PATH`` with this Python's folder first: an environment need not be activated for its tools to be found."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
