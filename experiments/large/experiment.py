"""The large demo: features once, then each contender in its own process; finished results are reused."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.large.contenders import Contender
from experiments.large.trial import CPU, Task
from robustdml.cache import make_once, read_array, write_text, write_whole
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.errors import UsageError
from robustdml.networks.backbones.choice import load_origin
from robustdml.networks.stored_features import store_split
from robustdml.plain_files import read_json
from robustdml.progress import OnProgress
from robustdml.retrieval import retrieval_metrics

NOISE = "symmetric:0.5"


@dataclass(frozen=True)
class Scale:
    """Settings of the scale."""

    epochs: int  # As in `TrainingConfig`
    embedding_size: int
    threads: int  # Of torch in every process


def untouched(data: RetrievalData, on_progress: OnProgress) -> tuple[dict[str, tuple[str, str]], dict[str, float]]:
    """Files of features and labels of both splits, and retrieval metrics of the features; made once."""
    origin = load_origin(TrainingConfig(), data, CPU, on_progress)
    splits = {"train": data.train, "test": data.test}
    features = {part: store_split(split, origin, CPU, on_progress) for part, split in splits.items()}
    files = {part: (str(features[part]), str(_labels_file(features[part], splits[part].labels))) for part in splits}
    scores = Path(files["test"][1]).with_suffix(".json")
    if not scores.exists():
        on_progress("nearest neighbours of the features as they are", 0, 0)
        metrics = retrieval_metrics(read_array(Path(files["test"][0])), data.test.labels)
        write_text(scores, json.dumps(metrics))
    return files, read_json(scores, "file of scores; delete it, and it is made again")


def run_missing(
    contenders: Sequence[Contender],
    files: dict[str, tuple[str, str]],
    data_name: str,
    scale: Scale,
    folder: Path,
    on_done: Callable[[Contender, dict[str, Any]], None],
) -> dict[str, dict[str, Any]]:
    """Train every contender without a stored result of the same settings."""
    results = {}
    for contender in contenders:
        task = Task(contender.name, NOISE, data=data_name, **asdict(scale), train=files["train"], test=files["test"])
        result = _read(folder / f"{contender.name}.json", task) or _run(task, folder)
        results[contender.name] = result
        on_done(contender, result)
    return results


def _run(task: Task, folder: Path) -> dict[str, Any]:
    result = folder / f"{task.contender}.json"
    module, told = "experiments.large.trial", json.dumps(asdict(task))
    status = subprocess.run([sys.executable, "-m", module, told, str(result)], check=False).returncode
    done = _read(result, task) if status == 0 else None
    if done is None:
        raise UsageError(f"{task.contender} failed (exit status {status}); what it said is above")
    return done


def _read(path: Path, task: Task) -> dict[str, Any] | None:
    """A stored result; None if there is none of this task."""
    if not path.exists():
        return None
    result = read_json(path, "result of the large demo; delete it, and it is trained again")
    return result if result.get("task") == json.loads(json.dumps(asdict(task))) else None


def _labels_file(features: Path, labels: NDArray[np.int64]) -> Path:
    """Write the labels beside the features, with a hash of both in the name."""
    digest = hashlib.sha256(labels.tobytes()).hexdigest()[:16]
    path = features.with_name(f"{features.stem}-labels-{digest}.npy")
    make_once(lambda: write_whole(path, lambda file: np.save(file, labels)), path)
    return path
