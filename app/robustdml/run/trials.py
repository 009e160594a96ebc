"""Trial runs on three quarters of the classes choose filter, learning rate and averaging by MAP@R of the others.

The averaging is the weight of the trained embedding layer in its average with its start, as in Wortsman et al., "Robust
fine-tuning of zero-shot models", CVPR 2022. Held-out labels may be wrong: that lowers the figures of all trials alike.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData, take_classes
from robustdml.evaluation import precisions_by_class
from robustdml.filters.options import AUDIT, FILTERS, FilterOptions
from robustdml.networks.preparation import Prepared
from robustdml.progress import OnProgress
from robustdml.run.run import Run

HELD_OUT = 0.25
FEWEST_CLASSES = 4
# A trial has at most MOST_CLASSES, and beyond ENOUGH_CLASSES no more than have MOST_SAMPLES together.
MOST_CLASSES = 1000
ENOUGH_CLASSES = 200
MOST_SAMPLES = 6000
# Factor of the lower learning rate that is tried: a network that moves less memorises fewer wrong labels.
SLOW = 0.1
# Averagings that are tried, as fractions of `largest_averaging`; the start, 0, is compared with the best.
TRIED = (0.25, 0.5, 0.75, 1.0)
# Held-out classes from which on a gain is tested.
FEWEST_TESTED = 8
# A layer that was trained on C classes has an averaging of at most C / (C + PRIOR_CLASSES).
PRIOR_CLASSES = 5.0


def prepare_run(run: Run, report: OnProgress) -> None:
    """Prepare the first epoch: run the trials that choose settings, and fit the inputs of the loss."""
    start = time.perf_counter()
    if run.config.chooses_averaging:
        choose(run, report)
    trial_seconds = time.perf_counter() - start
    run.fit_inputs(report)
    run.phase_one_seconds += trial_seconds


def choose(run: Run, report: OnProgress) -> None:
    """Run the trials, and set the run to the best of them."""
    present, sizes = np.unique(run.labels, return_counts=True)
    largest = largest_averaging(len(present))
    order = np.random.default_rng(run.config.seed).permutation(len(present))
    order = order[: num_tried(sizes[order])]
    num_held = max(2, round(HELD_OUT * len(order)))
    held, kept = order[:num_held], order[num_held:]
    if len(present) < FEWEST_CLASSES or sizes[held].max() < 2:
        run.averaging = largest
        return
    ways = ways_to_train(run.config)
    start: NDArray[np.float64] | None = None
    best, most, averaging = ways[0], -np.inf, 0.0
    for number, config in enumerate(ways, start=1):
        trial = _start(run, config, present[np.sort(kept)], present[np.sort(held)])
        if start is None:
            trial.averaging = 0.0
            start = trial.evaluate(precisions_by_class)
        _train(trial, f"trial {number} of {len(ways)}", report)
        # The largest first: of equal points the first is taken.
        for tried in reversed(TRIED):
            trial.averaging = tried * largest
            scores = trial.evaluate(precisions_by_class)
            if scores.mean() > most:
                best, most = config, scores.mean()
                averaging = trial.averaging if is_gain(scores - start) else 0.0
    # All processes take the choice of the first: last bits may differ.
    chosen = torch.tensor([ways.index(best), averaging], dtype=torch.float64, device=run.device)
    number, averaging = run.world.merged(chosen if run.world.leads else torch.full_like(chosen, torch.nan)).tolist()
    best = ways[int(number)]
    run.choose(best.filter_options, best.network_learning_rate, averaging)


def num_tried(sizes: NDArray[np.int64]) -> int:
    """Number of classes in a trial."""
    affordable = int(np.searchsorted(np.cumsum(sizes), MOST_SAMPLES, side="right"))
    return min(len(sizes), MOST_CLASSES, max(ENOUGH_CLASSES, affordable))


def ways_to_train(config: TrainingConfig) -> list[TrainingConfig]:
    """List the configurations to try; of equally good ones the first is taken."""
    asked = config.filter_options
    if not asked.on_trial or asked.kind not in FILTERS:
        return [config]
    audit = replace(config, filter=FilterOptions(AUDIT), noise_rate=None)
    ways = [replace(config, filter=FilterOptions(), noise_rate=None), audit, config]
    if config.learning_rate is None:
        ways.append(replace(audit, learning_rate=SLOW * config.network_learning_rate))
    return ways


def _start(run: Run, config: TrainingConfig, kept: NDArray[np.int64], held: NDArray[np.int64]) -> Run:
    """Begin a run that trains on some of the classes and tests on others, by the labels given."""
    split = run.prepared.data.train
    data = RetrievalData(run.prepared.data.name, take_classes(split, kept), take_classes(split, held))
    features = data.train.inputs.astype(np.float32, copy=False)
    prepared: Prepared = replace(run.prepared, data=data, frozen_features=lambda: features)
    settings = replace(config, noise_rate=config.assumed_noise_rate(run.prepared.data.noise_rate), labels="")
    with _seeded(run):
        trial = Run(settings, prepared, run.device, run.method)
    if config.filter_options.kind == AUDIT:
        trial.label_quality = run.judge_labels()[torch.from_numpy(np.isin(run.labels, kept))]
    return trial


def _train(trial: Run, title: str, report: OnProgress) -> None:
    with _seeded(trial):
        trial.fit_inputs(report)
        while trial.epoch < trial.config.epochs:
            trial.train_epoch(lambda what, done, total: report(f"{title}, {what}", done, total), (), evaluate=False)


def largest_averaging(num_classes: int) -> float:
    """Largest averaging, by the number of training classes."""
    return num_classes / (num_classes + PRIOR_CLASSES)


def is_gain(differences: NDArray[np.float64]) -> bool:
    """Tell whether the mean gain over the start is more than chance: at least two standard errors."""
    if differences.mean() < 0:
        return False
    if len(differences) < FEWEST_TESTED or not differences.any():
        return True
    return bool(differences.mean() >= 2 * differences.std(ddof=1) / len(differences) ** 0.5)


@contextmanager
def _seeded(run: Run) -> Iterator[None]:
    """Use random numbers of the run's seed, and restore the generators afterwards."""
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        torch.manual_seed(run.config.seed)
        yield
