"""Checkpoints: one file that is whole or absent, with plain tensors and numbers in it."""

from pathlib import Path
from typing import Any

import torch

from robustdml.cache import write_whole
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.plain_files import read_plain

FILE_NAME = "checkpoint.pt"
FORMAT = 3


def save_checkpoint(folder: Path, config: TrainingConfig, data_summary: dict[str, Any], state: dict[str, Any]) -> None:
    """Write the checkpoint of a run, replacing the one before."""
    content = {"format": FORMAT, "config": config.as_dict(), "data": data_summary, "state": state}
    write_whole(folder / FILE_NAME, lambda file: torch.save(content, file))


def load_checkpoint(folder: Path, config: TrainingConfig, data_summary: dict[str, Any]) -> dict[str, Any]:
    """Read the state of a run that is to go on."""
    path = folder / FILE_NAME
    if not path.exists():
        raise UsageError(f"{path}: no checkpoint to resume from; drop --resume to start anew")
    content = read_plain(path, "checkpoint")
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
