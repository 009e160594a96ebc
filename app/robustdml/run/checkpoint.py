"""The folder of a run: its checkpoint, from which it goes on, and its history."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from robustdml.cache import check_writable, write_text
from robustdml.config import RANDOM, TrainingConfig
from robustdml.errors import UsageError, reason_of
from robustdml.networks.preparation import Prepared
from robustdml.networks.start import Start
from robustdml.plain_files import DamagedError, read_plain, save_plain
from robustdml.run.run import Run
from robustdml.trained.embedder import MODEL_FILE

CHECKPOINT, PREVIOUS_CHECKPOINT = "checkpoint.pt", "checkpoint.previous.pt"
CHECKPOINT_FORMAT = 8


def check_folder(out: Path, resume: bool) -> None:
    """Refuse a folder that a run cannot be kept in, before anything is done."""
    check_writable(out)
    path = out / CHECKPOINT
    if resume and not path.exists():
        raise UsageError(f"{path}: no checkpoint to resume from; drop --resume to start anew")
    if not resume and path.exists():
        raise UsageError(f"{out} holds a run already: resume it, or give another folder")
    others = [name for name in (MODEL_FILE, "metrics.json", "report.html") if (out / name).exists()]
    if others and not resume:
        raise UsageError(f"out {str(out)!r}: holds {' and '.join(others)}, and no checkpoint; give another folder")


def save_checkpoint(path: Path, run: Run, state: dict[str, Any]) -> None:
    """Write the state of a run; the one before is kept under another name, and at every moment there is a whole one."""
    if path.exists():
        second_name = path.with_name(f".{PREVIOUS_CHECKPOINT}")
        second_name.unlink(missing_ok=True)
        try:
            os.link(path, second_name)
        except OSError:  # not every disk gives a file two names
            shutil.copyfile(path, second_name)
        os.replace(second_name, path.with_name(PREVIOUS_CHECKPOINT))
        # After a kill the previous checkpoint may be this file already, and then renaming does nothing.
        second_name.unlink(missing_ok=True)
    about = {"format": CHECKPOINT_FORMAT, "config": run.config.as_dict(), "data": run.data_summary}
    save_plain(path, {**about, "state": state})


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, and check that it is one."""
    try:
        content = read_plain(path, "checkpoint", checked=True)
    except DamagedError as error:
        previous = path.with_name(PREVIOUS_CHECKPOINT)
        if not previous.exists():
            raise
        raise DamagedError(f"{error}. The one before it is {previous.name}: call it {path.name}, and resume") from error
    if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
        raise UsageError(f"{path}: not a checkpoint of format {CHECKPOINT_FORMAT}")
    if not all(isinstance(content.get(part), dict) for part in ("config", "data", "state")):
        raise UsageError(f"{path}: a checkpoint with parts missing")
    return content


def start_in(content: dict[str, Any], config: TrainingConfig, prepared: Prepared) -> Start | None:
    """Give the start in a checkpoint if it fits these features: choosing it anew would judge all labels again."""
    start = content["state"].get("start")
    weight = start.get("weight") if isinstance(start, dict) else None
    if config.layer_start == RANDOM or not isinstance(weight, Tensor) or weight.shape[1:] != (prepared.num_features,):
        return None
    return Start(len(weight), weight.double(), {})


def restore(path: Path, content: dict[str, Any], run: Run) -> None:
    """Set a run to the state in a checkpoint, which has to be of its settings and data."""
    changes = run.config.differences(content["config"])
    if content["data"] != run.data_summary:
        changes.append(f"data: {content['data']} then, {run.data_summary} now")
    if changes:
        raise UsageError(f"{path} is of another run; give the same settings or another folder. {'; '.join(changes)}")
    try:
        run.load_state(content["state"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UsageError(f"{path}: not the state of this run ({type(error).__name__}: {reason_of(error)})") from error


def write_history(out: Path, run: Run) -> None:
    """Write the record of each epoch as a line."""
    write_text(out / "history.jsonl", "".join(json.dumps(record) + "\n" for record in run.history))
