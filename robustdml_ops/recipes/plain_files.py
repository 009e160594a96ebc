"""Files of plain tensors, numbers and texts, opened without running anything that is in them."""

from pathlib import Path
from typing import Any

import torch

from robustdml_ops.recipes.errors import UsageError


def read_plain(path: Path, kind: str) -> Any:
    """Read what `torch.save` wrote.

    Parameters
    ----------
    path : Path
        The file.
    kind : str
        What it should be, for the error.

    Returns
    -------
    object
        Its content, on the CPU.

    Raises
    ------
    UsageError
        The file cannot be read, or holds more than plain data.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # A damaged file makes `torch.load` raise nearly anything, an IndexError for one.
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path}: not a readable {kind} ({reason or type(error).__name__})") from error
