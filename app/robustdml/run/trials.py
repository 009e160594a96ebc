"""Trial runs on some of the training classes choose loss, filter, learning rate and averaging by the other classes.

The averaging is the weight of the trained embedding layer in its average with its start, as in Wortsman et al., "Robust
fine-tuning of zero-shot models", CVPR 2022. All are compared with the untouched features, which are kept unless a gain
over them is more than chance. Held-out labels may be wrong: that lowers the figures of all alike.
"""

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robustdml.config import PRINCIPAL, TrainingConfig
from robustdml.data import RetrievalData, Rows, Split
from robustdml.evaluation import judged_among
from robustdml.filters.filter import LEAST_QUALITY
from robustdml.filters.options import AUDIT, FILTERS, NO_FILTER, FilterOptions
from robustdml.methods import METHODS
from robustdml.networks.models import apply_in_batches, unit_length
from robustdml.networks.preparation import Prepared
from robustdml.networks.start import Start, make_start
from robustdml.progress import OnProgress
from robustdml.run.evidence import Tally, advice
from robustdml.run.run import Run

HELD_OUT = 1 / 3
FEWEST_CLASSES = 4
# A trial has at most MOST_CLASSES, and beyond ENOUGH_CLASSES no more than have MOST_SAMPLES together.
MOST_CLASSES = 1000
ENOUGH_CLASSES = 200
MOST_SAMPLES = 6000
# Held-out samples of a split that search.
MOST_QUERIES = 600
# Splits, by the number of classes that are tried.
SPLITS = {100: 2, 20: 3, 0: 4}
# All ways train on the first split for this share of the epochs; the best FINALISTS train on, and the best of them on
# the other splits, until the evidence is plain. A finalist is at most LEAD of MAP@R behind the best.
FIRST = 1 / 5
FINALISTS, LEAD = 2, 0.02
# Gain of MAP@R after the first share of the epochs that is told.
RISING = 0.01
# Averagings that are tried, as fractions of `largest_averaging`; 0 is the start.
TRIED = (0.25, 0.5, 0.75, 1.0)
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
    trials = Trials(run, report)
    for number, (kept, held) in enumerate(splits_of(run.labels, run.config.seed)):
        # Random numbers of the run's seed; the generators are restored afterwards.
        with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
            torch.manual_seed(run.config.seed)
            trials.run_split(kept, held, first=number == 0)
        if trials.is_plain:
            break
    # All processes take the choice of the first: last bits may differ.
    chosen = torch.tensor(trials.winner(), dtype=torch.float64, device=run.device)
    chosen = run.world.merged(chosen if run.world.leads else torch.full_like(chosen, torch.nan))
    number, averaging, supported = chosen.tolist()
    way = trials.ways[int(number)]
    keep = not supported and run.can_keep_features
    run.choose(way.method, way.filter_options, way.network_learning_rate, averaging, keep)
    found: dict[str, Any] = {
        "kept_features": keep,
        "loss": way.method,
        "start": {"width": run.embedding_size, "measured": run.measured_widths},
        "steps": run.config.epochs * len(run.sampler),
        "doubted": trials.doubted,
        "contestants": trials.contestants(int(number), averaging),
    }
    run.chosen = {**found, "advice": advice(found, run.config.epochs)}


class Trials:
    """Trial runs, and what they have found."""

    def __init__(self, run: Run, report: OnProgress) -> None:
        self.run, self.report = run, report
        self.ways = ways_to_train(run)
        self.largest = largest_averaging(len(np.unique(run.labels)))
        self.averagings = [tried * self.largest for tried in TRIED]
        # By the way and the averaging; the start has the averaging 0 of the first way.
        self.tallies: dict[tuple[int, float], Tally] = {}
        self.alive = list(range(len(self.ways)))
        self.finalists = self.alive
        self.first_epochs = math.ceil(run.config.epochs * FIRST)
        self.early: dict[int, float] = {}  # Best gain of MAP@R where all were compared
        self.rising: set[int] = set()
        self.doubted = 0.0  # Share of the labels that the auditor doubts

    @property
    def is_plain(self) -> bool:
        """Whether more splits would hardly change the choice: all that is alive gains plainly, or plainly loses."""
        found = [tally for (way, averaging), tally in self.tallies.items() if way in self.alive and averaging]
        return any(tally.gains_plainly for tally in found) or all(tally.loses_plainly for tally in found)

    def winner(self) -> tuple[int, float, bool]:
        """The best way, its averaging, and whether its gain over the untouched features is more than chance."""
        most = max((tally.splits for tally in self.tallies.values()), default=0)
        judged = {key: tally for key, tally in self.tallies.items() if tally.splits == most}
        found = {key: tally for key, tally in judged.items() if tally.supported} or judged
        if not found:
            return len(self.ways) - 1, self.largest, False
        # Of equal ones that which has moved more.
        way, averaging = max(found, key=lambda key: (found[key].mean[1], key[1]))
        return way, averaging, found[way, averaging].supported

    def contestants(self, way: int, averaging: float) -> list[dict[str, Any]]:
        """Figures of each way at its best averaging, or at the chosen one."""
        found: list[dict[str, Any]] = []
        for number, config in [(0, self.ways[0]), *enumerate(self.ways)]:
            tried = [key for key in self.tallies if key[0] == number and (key[1] > 0) == bool(found)]
            if not tried:
                continue
            best = max(tried, key=lambda key: (key == (way, averaging), self.tallies[key].mean[1]))
            trained = self.run.config.epochs if number in self.finalists else self.first_epochs
            found.append(
                {
                    "chosen": best == (way, averaging),
                    "supported": self.tallies[best].supported,
                    "loss": config.method if best[1] else "start",
                    "filter": config.filter_options.kind if best[1] else NO_FILTER,
                    "learning_rate": config.network_learning_rate if best[1] else 0.0,
                    "averaging": best[1],
                    "epochs": trained if best[1] else 0,
                    "rising": number in self.rising,
                    **self.tallies[best].as_dict(),
                }
            )
        return found

    def run_split(self, kept: Rows, held: Rows, first: bool) -> None:
        """Train on the samples of some classes, and measure on those of others."""
        run = self.run
        split = run.prepared.data.train
        data = RetrievalData(run.prepared.data.name, _of_rows(split, kept), _of_rows(split, held))
        features = np.asarray(data.train.inputs, np.float32)
        start = make_start(features, run.embedding_size)
        prepared: Prepared = replace(run.prepared, data=data, frozen_features=lambda: features)
        queries = _some_of_each_class(data.test.labels)

        def judge(embeddings: NDArray[np.float32]) -> NDArray[np.float64]:
            return judged_among(unit_length(torch.from_numpy(embeddings)), data.test.labels, queries)

        def embed(network: torch.nn.Module) -> NDArray[np.float32]:
            return apply_in_batches(network, data.test.inputs, run.device)

        untouched = judge(embed(prepared.backbone))
        trials = {way: self._begin(self.ways[way], prepared, start, kept) for way in self.alive}
        # The layer is linear, and so is the average in its weight.
        begun = embed(trials[self.alive[0]].embedder)

        def measure(way: int) -> float:
            moved = embed(trials[way].embedder) - begun
            return max(note(way, averaging, begun + averaging * moved) for averaging in self.averagings)

        def note(way: int, averaging: float, embeddings: NDArray[np.float32]) -> float:
            tally = self.tallies.setdefault((way, averaging), Tally(split.num_classes))
            tally.add(split.labels[held][queries], judge(embeddings) - untouched)
            return float(tally.mean[1])

        note(0, 0.0, begun)
        if first:
            for way in self.alive:
                self._train(trials[way], way, self.first_epochs)
                self.early[way] = measure(way)
            best = sorted(self.early, key=lambda way: -self.early[way])[:FINALISTS]
            self.alive = self.finalists = sorted(way for way in best if self.early[way] >= self.early[best[0]] - LEAD)
            for way in self.alive:  # They are measured again at the end.
                for averaging in self.averagings:
                    del self.tallies[way, averaging]
        gains = {}
        for way in self.alive:
            self._train(trials[way], way, run.config.epochs)
            gains[way] = measure(way)
        if first:
            self.rising = {way for way in gains if gains[way] > self.early[way] + RISING}
            self.alive = [max(self.alive, key=lambda way: gains[way])]

    def _begin(self, config: TrainingConfig, prepared: Prepared, start: Start, kept: Rows) -> Run:
        """Begin a run that trains on some of the classes and tests on others, by the labels given."""
        run = self.run
        settings = replace(config, noise_rate=config.assumed_noise_rate(run.prepared.data.noise_rate), labels="")
        method = run.method if config.method == run.config.method else METHODS[config.method]
        trial = Run(settings, prepared, run.device, method, start=start)
        if config.filter_options.kind == AUDIT:
            quality = run.judge_labels()
            self.doubted = float((quality < LEAST_QUALITY).float().mean())
            trial.label_quality = quality[torch.from_numpy(kept)]
        trial.fit_inputs(self.report)
        return trial

    def _train(self, trial: Run, way: int, epochs: int) -> None:
        config = self.ways[way]
        title = f"trial of {config.method}, filter {config.filter_options.kind}, learning rate "
        title += f"{config.network_learning_rate:g}"
        while trial.epoch < epochs:
            trial.train_epoch(
                lambda what, done, total: self.report(f"{title}, {what}", done, total), (), evaluate=False
            )


def splits_of(labels: NDArray[np.int64], seed: int) -> list[tuple[Rows, Rows]]:
    """Samples to train on and samples to test on, of different classes; none where there are too few."""
    present, sizes = np.unique(labels, return_counts=True)
    random = np.random.default_rng(seed)
    order = random.permutation(len(present))[: num_tried(random.permutation(sizes))]
    if len(present) < FEWEST_CLASSES:
        return []
    held_out = max(2, round(HELD_OUT * len(order)))
    folds = [order[i : i + held_out] for i in range(0, len(order) - held_out + 1, held_out)]
    while len(folds) < 4:  # Few classes are held out several times, in other company.
        again = random.permutation(order)
        folds += [again[i : i + held_out] for i in range(0, len(order) - held_out + 1, held_out)]
    wanted = next(number for least, number in SPLITS.items() if len(order) >= least)
    rows = _thinned(labels, present[order], random)
    found = []
    for fold in folds[:wanted]:
        tested = np.isin(labels[rows], present[fold])
        if np.unique(labels[rows[tested]], return_counts=True)[1].max() > 1:
            found.append((rows[~tested], rows[tested]))
    return found


def _thinned(labels: NDArray[np.int64], classes: NDArray[np.int64], random: np.random.Generator) -> Rows:
    """Samples of these classes, sorted; of few large classes at most `MOST_SAMPLES`."""
    rows = np.flatnonzero(np.isin(labels, classes))
    return rows if len(rows) <= MOST_SAMPLES else np.sort(random.choice(rows, MOST_SAMPLES, replace=False))


def _some_of_each_class(labels: NDArray[np.int64]) -> Rows:
    """At most `MOST_QUERIES` samples, evenly from all classes."""
    by_class = np.argsort(labels, kind="stable")
    return np.sort(by_class[np.linspace(0, len(labels) - 1, min(len(labels), MOST_QUERIES)).astype(np.int64)])


def _of_rows(split: Split, rows: Rows) -> Split:
    classes, labels = np.unique(split.labels[rows], return_inverse=True)
    return split.take(rows, labels.astype(np.int64), tuple(split.class_names[c] for c in classes))


def num_tried(sizes: NDArray[np.int64]) -> int:
    """Number of classes in a trial."""
    affordable = int(np.searchsorted(np.cumsum(sizes), MOST_SAMPLES, side="right"))
    return min(len(sizes), MOST_CLASSES, max(ENOUGH_CLASSES, affordable))


def ways_to_train(run: Run) -> list[TrainingConfig]:
    """List the configurations to try; of equally good ones the first is taken."""
    config = run.config
    asked = config.filter_options
    if not asked.on_trial or asked.kind not in FILTERS:
        return [config]
    ways = [replace(config, filter=FilterOptions(kind), noise_rate=None) for kind in (NO_FILTER, AUDIT)]
    if run.weights is None and run.world.size == 1:
        ways.append(replace(ways[0], method="superloss", start=PRINCIPAL, averaging=None))
    return ways


def largest_averaging(num_classes: int) -> float:
    """Largest averaging, by the number of training classes."""
    return num_classes / (num_classes + PRIOR_CLASSES)
