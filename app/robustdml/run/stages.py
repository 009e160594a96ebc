"""Two stages of a run over many classes: pairs, and then pairs again or proxies that begin as embeddings.

Between them the filter judges the labels, and both losses of the method train for the same time from there on, or for
the steps that the run has left. The one that is better on classes that the first stage has not seen trains on, with all
classes.
"""

import time
from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Rows
from robustdml.evaluation import JUDGED, judged
from robustdml.filters.filter import KEPT
from robustdml.filters.own_class import OwnClassVerdict
from robustdml.methods import METHODS
from robustdml.networks.models import apply_in_batches
from robustdml.progress import OnProgress, silent
from robustdml.retrieval import METRICS
from robustdml.run.run import Run
from robustdml_ops.losses import start_class_matrix

MOST_STEPS = 300  # of the trial of proxies
AT_ONCE = 4096  # samples that proxies begin from


class _EnoughError(Exception):
    """A trial has taken its steps."""


def is_between_stages(run: Run) -> bool:
    """Whether the first half of the epochs is over, and the loss of the second is not chosen yet."""
    at_half = run.epoch == run.config.epochs // 2 and run.under_way.steps == 0
    return METHODS[run.config.method].has_stages and at_half and run.chosen is None


def choose_second_stage(run: Run, on_progress: OnProgress) -> None:
    """Judge the labels, try both losses, and set the run to the better; the run is as before if that is broken off."""
    if isinstance(run.filter, OwnClassVerdict):
        run.filter.judge_all(run.embed_training_split(), run.labels, on_progress)
    begun = deepcopy(run.state())  # copied once more when it is loaded: an optimiser goes on in what it was given
    pairs, proxies = METHODS[run.config.method].losses
    left = (run.config.epochs - run.epoch) * len(run.sampler)
    most = min(left, MOST_STEPS)

    def proxies_are_enough(steps: int, seconds: float) -> bool:
        on_progress("trial of proxies", steps, most)
        return steps >= most

    try:
        of_proxies = _trial(run, proxies, proxies_are_enough)
        run.load_state(deepcopy(begun))
        on_progress("trial of pairs", 0, 0)
        of_pairs = _trial(run, pairs, lambda steps, seconds: steps >= left or seconds >= of_proxies["seconds"])
    finally:
        run.load_state(deepcopy(begun))
    trials = {proxies: of_proxies, pairs: of_pairs}
    chosen = proxies if of_proxies[JUDGED[1]] > of_pairs[JUDGED[1]] else pairs
    classes = len(np.unique(run.labels[run.aside]))
    told = "; ".join(f"{loss} {_in_words(found)}" for loss, found in trials.items())
    seconds = f"{of_proxies['seconds']:.3g} s"
    advice = f"Chosen halfway: {chosen}. Trials of at most {seconds}, {classes:,} held-out classes: {told}."
    run.chosen = {"loss": chosen, "contestants": [], "trials": trials, "advice": advice}
    _take(run, chosen)


def _in_words(found: dict[str, float]) -> str:
    metrics = " and ".join(f"{METRICS[key]} {found[key]:.3f}" for key in JUDGED)
    return f"{metrics} after {found['steps']:,} steps"


def _trial(run: Run, loss: str, is_enough: Callable[[int, float], bool]) -> dict[str, float]:
    """Train on with a loss, by steps and seconds until that is enough, the making of its proxies included; measure."""
    clock: Callable[[], float] = time.process_time if run.device.type == "cpu" else time.perf_counter
    begun, steps = clock(), 0

    def pause() -> None:
        nonlocal steps
        steps += 1
        if is_enough(steps, clock() - begun):
            raise _EnoughError

    _take(run, loss)
    try:
        while True:
            run.take_steps(silent, (), pause)
            run.next_epoch({})
    except _EnoughError:
        seconds = clock() - begun
    return {"steps": steps, "seconds": seconds, **_measured(run)}


def _take(run: Run, loss: str) -> None:
    """Train on with this loss, on what is kept."""
    if loss != run.loss_name:
        verdict = run.filter.state_dict()
        run.choose(loss, run.filter_options, run.averaging, keeps_features=False)
        run.filter.load_state_dict(verdict)
    run.draw_from_kept()
    if run.method.proxy_radians is not None:
        start_class_matrix(run.loss, _embedded(run, run.drawn))


def _embedded(run: Run, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
    """Embeddings and labels of training samples, as they are now."""
    for some in np.array_split(rows, -(-len(rows) // AT_ONCE)):
        embeddings = apply_in_batches(run.embedder, run.prepared.data.train.inputs[some], run.device)
        yield torch.from_numpy(embeddings).to(run.device), torch.from_numpy(run.labels[some]).to(run.device)


def _measured(run: Run) -> dict[str, float]:
    """Recall@1 and MAP@R among the samples of the held-out classes whose labels are kept."""
    kept = run.filter.verdict.get(KEPT)
    rows = np.flatnonzero(run.aside if kept is None else run.aside & kept.cpu().numpy())
    embeddings = apply_in_batches(run.embedder, run.prepared.data.train.inputs[rows], run.device)
    found = judged(embeddings, run.labels[rows])
    found = found[~np.isnan(found[:, 0])]
    return dict(zip(JUDGED, (found.mean(0) if len(found) else np.zeros(2)).tolist(), strict=True))
