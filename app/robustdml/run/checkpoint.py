"""Checkpoints: one file that is whole or absent, with plain tensors and numbers in it, and the one before it."""

import os
import shutil
from pathlib import Path
from typing import Any

from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.plain_files import DamagedError, read_plain, save_plain

FILE_NAME = "checkpoint.pt"
PREVIOUS = "checkpoint.previous.pt"
FORMAT = 4


def save_checkpoint(folder: Path, config: TrainingConfig, data_summary: dict[str, Any], state: dict[str, Any]) -> None:
    """Write the checkpoint of a run; the one before is kept under another name."""
    content = {"format": FORMAT, "config": config.as_dict(), "data": data_summary, "state": state}
    path = folder / FILE_NAME
    if path.exists():
        _keep(path)
    save_plain(path, content)


def _keep(path: Path) -> None:
    """Make the file that will be replaced the previous one; at every moment there is a whole checkpoint."""
    second_name = path.with_name(f".{PREVIOUS}")
    second_name.unlink(missing_ok=True)
    try:
        os.link(path, second_name)
    except OSError:  # not every disk gives a file two names
        shutil.copyfile(path, second_name)
    os.replace(second_name, path.with_name(PREVIOUS))


def load_checkpoint(folder: Path, config: TrainingConfig, data_summary: dict[str, Any]) -> dict[str, Any]:
    """Read the state of a run that is to go on."""
    path = folder / FILE_NAME
    if not path.exists():
        raise UsageError(f"{path}: no checkpoint to resume from; drop --resume to start anew")
    try:
        content = read_plain(path, "checkpoint", checked=True)
    except DamagedError as error:
        previous = path.with_name(PREVIOUS)
        if not previous.exists():
            raise
        raise DamagedError(
            f"{error}. The one before it is {previous.name}: name it {path.name}, and resume there"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"{path}: not a checkpoint of format {FORMAT}")
    if not all(isinstance(content.get(part), dict) for part in ("config", "data", "state")):
        raise UsageError(f"{path}: a checkpoint with parts missing")
    changes = config.differences(content["config"])
    if content["data"] != data_summary:
        changes.append(f"data: {content['data']} then, {data_summary} now")
    if changes:
        raise UsageError(f"{path} is of another run; give the same settings or another folder. {'; '.join(changes)}")
    state: dict[str, Any] = content["state"]
    return state
