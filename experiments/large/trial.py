"""A contender's run in its own process, so that its memory is measured alone.

``python -m experiments.large.trial TASK RESULT.json`` runs TASK, given as JSON, and writes its measurements.
"""

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.large import process_memory
from experiments.large.contenders import BY_NAME, Contender
from robustdml.cache import write_text
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, Split
from robustdml.networks.preparation import prepare
from robustdml.noise import with_wrong_labels
from robustdml.progress import Recorder, progress_bar
from robustdml.retrieval import retrieval_metrics
from robustdml.run.run import Run
from robustdml.run.trials import prepare_run

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Task:
    """A run, as it is sent to its process."""

    contender: str  # A key of `experiments.large.contenders.BY_NAME`
    noise: str  # As in `TrainingConfig`
    epochs: int  # As in `TrainingConfig`
    embedding_size: int
    threads: int  # Of torch
    data: str  # Title of the data in reports
    train: tuple[str, str]  # Files of features, float32 (N, F), and labels, int64 (N,)
    test: tuple[str, str]

    def read_data(self) -> RetrievalData:
        """Read the features into memory: pages of a mapping would count as memory of the step that first uses them."""
        train, test = (
            Split(np.load(features), labels, tuple(map(str, range(int(labels.max()) + 1))))
            for features, labels in ((path, np.load(of_labels)) for path, of_labels in (self.train, self.test))
        )
        return RetrievalData(self.data, train, test)


class Clock(Recorder):
    """Records the time of every step, and the peak memory of the steps of each epoch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.peak: int | None = None
        self._last = 0.0

    def start_epoch(self) -> None:
        """Reset time and peak after the evaluation of the last epoch."""
        process_memory.forget_peak()
        self._last = time.perf_counter()

    def step(self, step: int, steps: int, loss: Tensor | None) -> None:
        """Record a step."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now
        if step == steps and (peak := process_memory.peak()) is not None:
            self.peak = max(peak, self.peak or 0)


def run(task: Task) -> dict[str, Any]:
    """Train a contender."""
    torch.set_num_threads(task.threads)
    contender = BY_NAME[task.contender]
    data = with_wrong_labels(task.read_data(), task.noise, seed=0)
    _warm_up(contender)
    before = process_memory.forget_peak()
    with progress_bar(f"{contender.title}, {contender.whose}") as report:
        trained, clock = _train(contender, contender.config(task.epochs, task.embedding_size), data, report)
    parameters = [*trained.embedder.parameters(), *trained.loss.parameters()]
    counted = 4 * sum(parameter.nbytes for parameter in parameters)
    state = [*trained.filter.parameters(), *trained.filter.buffers()]
    return {
        "task": asdict(task),
        "history": trained.history,
        "seconds": trained.phase_one_seconds + sum(record["seconds"] for record in trained.history),
        "step_seconds": statistics.median(clock.seconds),
        "extra_bytes": None if before is None or clock.peak is None else clock.peak - before - counted,
        "filter_bytes": sum(tensor.nbytes for tensor in state),
    }


def _train(contender: Contender, config: TrainingConfig, data: RetrievalData, report: Any) -> tuple[Run, Clock]:
    torch.manual_seed(config.seed)
    training = Run(config, prepare(config, data, CPU, report), CPU, contender.make_method())
    clock = Clock()
    prepare_run(training, report)
    while training.epoch < config.epochs:
        clock.start_epoch()
        training.take_steps(report, [clock])
        training.end_epoch(training.evaluate(retrieval_metrics))
    return training, clock


def _warm_up(contender: Contender) -> None:
    """Train on little data first, so that libraries have started their threads and allocated their workspaces."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(64), 12)
    features = random.normal(size=(len(labels), 32)).astype(np.float32)
    split = Split(features, labels, tuple(map(str, range(64))))
    config = contender.config(epochs=2, embedding_size=16)
    data = with_wrong_labels(RetrievalData("warm-up", split, split), "symmetric:0.5", seed=0)
    _train(contender, config, data, lambda *_: None)


def main(task: str, result: str) -> None:
    """Run a task, and write its result."""
    write_text(Path(result), json.dumps(run(Task(**json.loads(task))), indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
