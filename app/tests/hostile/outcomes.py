"""What commands leave, in a form in which two runs can be compared: all but times and memory, bit for bit."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Of all that commands leave these alone may differ from run to run.
MEASURED = re.compile(r"seconds$|_bytes$|^times$")
READERS: dict[str, Callable[[Path], Any]] = {
    ".json": lambda path: json.loads(path.read_text()),
    ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
    ".pt": lambda path: torch.load(path, weights_only=True),
    ".npy": np.load,
    ".npz": lambda path: dict(np.load(path)),
}


def outcome(folder: Path) -> dict[str, str]:
    """A digest of each file, by its path; a file that is not whole raises."""
    return {str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def check_whole(folder: Path) -> None:
    """Raise where a file that has its own name is not whole; what begins with a dot is nobody's."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            _digest(path)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(repr(_content(path)).encode()).hexdigest()[:16]
    except Exception as error:
        raise AssertionError(f"{path} is not whole: {error!r}") from error


def _content(path: Path) -> Any:
    if path.suffix in READERS:
        return _plain(READERS[path.suffix](path))
    if path.suffix in (".html", ".svg", ".md"):
        # They show times, and pictures whose numbers of elements are drawn at random.
        text = path.read_text().rstrip()
        assert path.suffix == ".md" or text.endswith(f"</{path.suffix[1:]}>"), "cut off"
        return "text"
    return path.read_bytes()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if not MEASURED.search(str(key))}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return value
