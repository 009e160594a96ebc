"""Trial runs that leave a quarter of the classes out, to see on these how best to train.

Nothing says beforehand whether a filter helps: where all labels are right it takes hard samples away, where most are
wrong nothing works without one, and where classes are small one that goes by embeddings in training goes astray. So
each is tried, and that is taken which retrieves the held-out classes best, by MAP@R: Recall@1 of a few classes is near
1 before training already, and the rest is chance. Labels may be wrong there as everywhere: wrong ones lower the figures
of all alike.
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
from robustdml.filters.options import AUDIT, FILTERS, FilterOptions
from robustdml.networks.preparation import Prepared
from robustdml.progress import OnProgress
from robustdml.run.averaging import TRIED, furthest_share, is_gain
from robustdml.run.run import Run

HELD_OUT = 0.25
FEWEST_CLASSES = 4
# A trial has so many classes at most, and of more than the first number no more than have so many samples: small
# classes tell little each, and large ones take time.
MOST_CLASSES = 1000
ENOUGH_CLASSES = 200
MOST_SAMPLES = 6000
# Of the learning rate: where wrong labels are learnt by heart, a short way is better than a part of a long one.
SLOW = 0.1


def prepare_run(run: Run, report: OnProgress) -> None:
    """Prepare the first epoch: run the trials that choose settings, and fit the inputs of the loss."""
    start = time.perf_counter()
    if run.config.chooses_averaging:
        choose(run, report)
    trial_seconds = time.perf_counter() - start
    run.fit_inputs(report)
    run.phase_one_seconds += trial_seconds


def choose(run: Run, report: OnProgress) -> None:
    """Train on three quarters of the classes in several ways, and go on as retrieves the others best."""
    present, sizes = np.unique(run.labels, return_counts=True)
    furthest = furthest_share(len(present))
    order = np.random.default_rng(run.config.seed).permutation(len(present))
    order = order[: num_tried(sizes[order])]
    num_held = max(2, round(HELD_OUT * len(order)))
    held, kept = order[:num_held], order[num_held:]
    if len(present) < FEWEST_CLASSES or sizes[held].max() < 2:
        run.share = furthest
        return
    ways = ways_to_train(run.config)
    start: NDArray[np.float64] | None = None
    best, most, share = ways[0], -np.inf, 0.0
    for number, config in enumerate(ways, start=1):
        trial = _start(run, config, present[np.sort(kept)], present[np.sort(held)])
        if start is None:
            trial.share = 0.0
            start = trial.precisions_by_class()
        _train(trial, f"trial {number} of {len(ways)}", report)
        # The furthest first: of equal points the first is taken.
        for tried in reversed(TRIED):
            trial.share = tried * furthest
            scores = trial.precisions_by_class()
            if scores.mean() > most:
                best, most = config, scores.mean()
                share = trial.share if is_gain(scores - start) else 0.0
    # Processes that train together go the way of the first, should a last bit have differed.
    chosen = torch.tensor([ways.index(best), share], dtype=torch.float64, device=run.device)
    number, share = run.world.merged(chosen if run.world.leads else torch.full_like(chosen, torch.nan)).tolist()
    best = ways[int(number)]
    run.choose(best.filter_options, best.network_learning_rate, share)


def num_tried(sizes: NDArray[np.int64]) -> int:
    """Number of classes in a trial."""
    affordable = int(np.searchsorted(np.cumsum(sizes), MOST_SAMPLES, side="right"))
    return min(len(sizes), MOST_CLASSES, max(ENOUGH_CLASSES, affordable))


def ways_to_train(config: TrainingConfig) -> list[TrainingConfig]:
    """List what is tried; of ways that do equally well the first is taken."""
    asked = config.filter_options
    if not asked.on_trial or asked.kind not in FILTERS:
        return [config]
    audit = replace(config, filter=FilterOptions(AUDIT), noise_rate=None)
    ways = [replace(config, filter=FilterOptions(), noise_rate=None), audit, config]
    if config.learning_rate is None:
        ways.append(replace(audit, learning_rate=SLOW * config.network_learning_rate))
    return ways


def _start(run: Run, config: TrainingConfig, kept: NDArray[np.int64], held: NDArray[np.int64]) -> Run:
    """Begin a run on some of the classes, by the labels as they were given, with others as its test split."""
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


@contextmanager
def _seeded(run: Run) -> Iterator[None]:
    """Random numbers of the run's seed; those of the run itself go on afterwards as if nothing had been."""
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        torch.manual_seed(run.config.seed)
        yield
