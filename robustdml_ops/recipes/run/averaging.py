"""How far to go from the features as they were: the average of the embedding layer with its start.

What a layer learns from a few classes need not hold for others. Between its start and its end lies a line of layers;
which point of it is best is asked of classes that a trial run leaves out, by MAP@R: Recall@1 of a few classes is near 1
before training already, and the rest is chance. Labels may be wrong there as everywhere: wrong ones lower the figures
of all points alike. The idea is that of Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022, whose
share is fixed, or chosen by clean data.
"""

import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml_ops.recipes.data import RetrievalData, take_classes
from robustdml_ops.recipes.networks.preparation import Prepared
from robustdml_ops.recipes.progress import OnProgress
from robustdml_ops.recipes.run.run import Run

# Points of the line that are tried, as shares of the furthest.
TRIED = (0.0, 0.25, 0.5, 0.75, 1.0)
HELD_OUT = 0.25
FEWEST_CLASSES = 4
MOST_CLASSES = 1000
# Held-out classes from which on a gain is tested.
FEWEST_TESTED = 8
# The start counts as much as training on so many classes: a layer that was trained on C goes C / (C + 5) of its way.
PRIOR_CLASSES = 5.0


def furthest_share(num_classes: int) -> float:
    """How far training may move the layer, by the number of classes that it learnt from.

    Parameters
    ----------
    num_classes : int
        C, of those that have samples.

    Returns
    -------
    float
        In (0, 1); a half for five classes, 0.98 for 250.
    """
    return num_classes / (num_classes + PRIOR_CLASSES)


def prepare_run(run: Run, report: OnProgress) -> None:
    """Do all that comes before the first epoch of a run: choose its share where that is asked for, and fit its inputs.

    Parameters
    ----------
    run : Run
        Its `share` is set, and the seconds of the trial are added to those of phase one.
    report : callable
        Told of progress.
    """
    start = time.perf_counter()
    if run.config.chooses_averaging:
        run.share = choose_share(run, report)
    trial_seconds = time.perf_counter() - start
    run.fit_inputs(report)
    run.phase_one_seconds += trial_seconds


def choose_share(run: Run, report: OnProgress) -> float:
    """Train on three quarters of the classes, and see which average retrieves the others best.

    Parameters
    ----------
    run : Run
        Whose settings and noisy labels are taken, and whose frozen features; it is not changed.
    report : callable
        Told of the trial's steps.

    Returns
    -------
    float
        Share of the trained layer. Without enough classes for a trial, `furthest_share`.
    """
    present, sizes = np.unique(run.labels, return_counts=True)
    furthest = furthest_share(len(present))
    order = np.random.default_rng(run.config.seed).permutation(len(present))[:MOST_CLASSES]
    num_held = max(2, round(HELD_OUT * len(order)))
    held, kept = order[:num_held], order[num_held:]
    if len(present) < FEWEST_CLASSES or sizes[held].max() < 2:
        return furthest
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        torch.manual_seed(run.config.seed)
        trial = _trial(run, present[np.sort(kept)], present[np.sort(held)])
        trial.fit_inputs(report)
        while trial.epoch < trial.config.epochs:
            trial.train_epoch(lambda title, done, total: report(f"trial, {title}", done, total), (), evaluate=False)
    scores = []
    for share in TRIED:
        trial.share = share * furthest
        scores.append(trial.precisions_by_class())
    # Of equal ones the furthest.
    best = max(range(len(TRIED)), key=lambda place: (scores[place].mean(), place))
    return TRIED[best] * furthest if is_gain(scores[best] - scores[0]) else 0.0


def is_gain(differences: NDArray[np.float64]) -> bool:
    """Tell whether what was gained over the start is more than chance.

    Where most labels are wrong, and classes are small, some point of the line is the best by chance, and may be far
    below the start for the right labels.

    Parameters
    ----------
    differences : ndarray
        Gain of each held-out class, (K,).

    Returns
    -------
    bool
        Whether the mean is at least two standard errors above 0; True for fewer than `FEWEST_TESTED` classes, from
        which nothing can be said, and where nothing differs.
    """
    if len(differences) < FEWEST_TESTED or not differences.any():
        return True
    return bool(differences.mean() >= 2 * differences.std(ddof=1) / len(differences) ** 0.5)


def _trial(run: Run, kept: NDArray[np.int64], held: NDArray[np.int64]) -> Run:
    """A run on some of the classes, by the labels as they were given, with others as its test split."""
    split = run.prepared.data.train
    whole = replace(split, labels=run.labels)
    data = RetrievalData(run.prepared.data.name, take_classes(whole, kept), take_classes(whole, held))
    features = data.train.inputs.astype(np.float32, copy=False)
    prepared: Prepared = replace(run.prepared, data=data, frozen_features=lambda: features)
    config = replace(run.config, noise="none", noise_rate=run.config.told_noise_rate, labels="")
    return Run(config, prepared, run.device, run.method)
