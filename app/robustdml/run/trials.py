"""Trial runs on some of the training classes choose loss, filter, learning rate and averaging by the other classes.

The averaging is the weight of the trained embedding layer in its average with its start, as in Wortsman et al., "Robust
fine-tuning of zero-shot models", CVPR 2022. All are compared with the untouched features, which are kept unless a gain
over them is more than chance. Held-out labels may be wrong, so a gain has to show among those that the audit keeps too.
The untrained whitened start is one of the settings that are tried: averaging 0.
"""

import math
import time
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

from robustdml.arrays import Doubles, Rows, Singles
from robustdml.config import WHITENED
from robustdml.data import RetrievalData
from robustdml.evaluation import judged
from robustdml.filters.filter import LEAST_QUALITY
from robustdml.filters.options import AUDIT, FilterOptions
from robustdml.methods import METHODS
from robustdml.networks.models import apply_in_batches
from robustdml.networks.preparation import Prepared
from robustdml.networks.start import Start, make_start
from robustdml.progress import OnProgress
from robustdml.run.choice import Setting, best_setting
from robustdml.run.contestants import factors_to_try, filters_to_try, has_few_classes, has_small_classes
from robustdml.run.evidence import CHANCE, CHANCE_OF_FEW, Tally, advice
from robustdml.run.held_out import FEW, FEWEST_CLASSES, leave_out_by_group, some_of_each_class, splits_of, thinned
from robustdml.run.run import Run

# A trial takes this share of the epochs, and of few classes that.
EPOCHS, EPOCHS_OF_FEW = 0.4, 0.5
# Averagings that are tried.
TRIED = (0.5, 0.75, 1.0)


def prepare_run(run: Run, on_progress: OnProgress) -> None:
    """Prepare the first epoch: run the trials that choose settings, and fit the inputs of the loss."""
    start = time.perf_counter()
    if run.config.chooses_averaging:
        choose(run, on_progress)
    run.fit_inputs(on_progress)
    run.phase_one_seconds = time.perf_counter() - start


def choose(run: Run, on_progress: OnProgress) -> None:
    """Run the trials, and set the run to the best of them."""
    on_progress("judging labels", 0, 0)  # of millions of samples it takes minutes
    # Random numbers of the run's seed; the generators are restored afterwards.
    with torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else []):
        torch.manual_seed(run.config.seed)
        trials = Trials(run, on_progress)
        for kept, held in splits_of(run.labels, run.config.seed):
            torch.manual_seed(run.config.seed)
            trials.run_split(kept, held)
            if trials.is_plain:
                break
        trials.leave_out_where_unsupported()
    # All processes take the choice of the first: last bits may differ.
    keys = list(trials.tallies)
    best, is_supported = best_setting(trials.tallies)
    chosen = torch.tensor([keys.index(best), is_supported], dtype=torch.float64, device=run.device)
    chosen = run.world.merged(chosen if run.world.leads else torch.full_like(chosen, torch.nan))
    number, supported = chosen.tolist()
    loss, options, factor, averaging = keys[int(number)]
    keep = not supported and run.can_keep_features
    run.choose(loss, options, averaging, keep)
    run.rates[0] = trials.rates[loss] * factor
    found: dict[str, Any] = {
        "kept_features": keep,
        "loss": loss,
        "filter": options.kind,
        "start": {"width": run.embedding_size, "measured": run.measured_widths},
        "steps": run.epochs * len(run.sampler),
        "raised": run.rates[0] / run.default_rate,
        "doubted": 0.0 if run.beliefs.quality is None else float((run.beliefs.quality < LEAST_QUALITY).float().mean()),
        "overlooked": trials.overlooked,
        "contestants": trials.contestants(int(number)),
    }
    run.chosen = {**found, "advice": advice(found, run.config.epochs)}


class Trials:
    """Trial runs and their measurements."""

    def __init__(self, run: Run, on_progress: OnProgress) -> None:
        self.run, self.on_progress = run, on_progress
        self.epochs = math.ceil(run.config.epochs * (EPOCHS_OF_FEW if has_few_classes(run) else EPOCHS))
        self.filters, self.overlooked = filters_to_try(run)
        self.factors = factors_to_try(run)
        # Learning rates by loss, in the proportion of their defaults unless one is named.
        self.rates = {run.loss_name: run.rates[0]}
        for name in run.method.losses[1:] if has_small_classes(run) else ():
            named = run.config.learning_rate is not None
            self.rates[name] = run.rates[0] * (1 if named else METHODS[name].learning_rate / run.method.learning_rate)
        settings = [Setting(*one) for one in product(self.rates, self.filters, self.factors, TRIED)]
        whitened = run.config.layer_start == WHITENED
        self.untrained = Setting(run.loss_name, self.filters[-1], 1.0, 0.0) if whitened else None
        settings += [] if self.untrained is None else [self.untrained]
        chance = CHANCE_OF_FEW if has_few_classes(run) else CHANCE
        self.tallies = {key: Tally(run.prepared.data.train.num_classes, chance) for key in settings}

    @property
    def is_plain(self) -> bool:
        """Whether more splits would hardly change the choice: an averaging gains plainly, or all plainly lose."""
        found = self.tallies.values()
        return any(tally.gains_plainly for tally in found) or all(tally.loses_plainly for tally in found)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the method's own loss gains on held-out classes, but not plainly."""
        own = [tally for (loss, *_), tally in self.tallies.items() if loss == self.run.loss_name]
        return any(tally.mean[1] > 0 for tally in own) and not any(tally.gains_plainly for tally in own)

    def contestants(self, chosen: int) -> list[dict[str, Any]]:
        """Figures of each filter, learning rate and averaging; none without a split."""
        return [
            {
                "loss": loss,
                "filter": options.kind,
                "learning_rate": self.rates[loss] * factor,
                "averaging": averaging,
                "chosen": place == chosen,
                "supported": tally.supported,
                **tally.as_dict(),
            }
            for place, ((loss, options, factor, averaging), tally) in enumerate(self.tallies.items())
            if tally.splits
        ]

    def leave_out_where_unsupported(self) -> None:
        """Where no gain on splits of few classes is more than chance, measure the whitened start on groups of them."""
        run = self.run
        few = FEWEST_CLASSES <= len(np.unique(run.labels)) < FEW
        if self.untrained is None or best_setting(self.tallies)[1] or not few:
            return
        rows = thinned(run.labels, np.unique(run.labels), np.random.default_rng(run.config.seed))
        features = np.asarray(run.prepared.data.train.inputs[rows], np.float32)
        self.tallies[self.untrained] = leave_out_by_group(
            features, run.labels[rows], run.beliefs.believed()[rows], run.embedding_size, run.config.seed
        )

    def run_split(self, kept: Rows, held: Rows) -> None:
        """Train on the samples of some classes, and measure on the samples of others."""
        run = self.run
        split = run.prepared.data.train
        train, test = (split.subset(rows) for rows in (kept, held))
        data = RetrievalData(run.prepared.data.name, train, test)
        features = np.asarray(data.train.inputs, np.float32)
        prepared: Prepared = replace(run.prepared, data=data, frozen_features=lambda: features)
        labels = data.test.labels
        believed = np.flatnonzero(run.beliefs.believed()[held])
        # All held-out samples by the labels given, and those alone whose labels the audit keeps.
        parts = [(rows, labels[rows], some_of_each_class(labels[rows])) for rows in (np.arange(len(held)), believed)]

        def embed(network: torch.nn.Module) -> Singles:
            return apply_in_batches(network, data.test.inputs, run.device)

        def measure(embeddings: Singles) -> list[Doubles]:
            return [judged(embeddings[rows], of_rows, queries) for rows, of_rows, queries in parts]

        # Wrong labels bring samples of the held-out classes into training: the start must not see them.
        rows = np.flatnonzero(run.beliefs.believed()[kept])
        start = make_start(features, run.embedding_size, rows)
        untouched = measure(embed(prepared.backbone))

        def record(key: Setting, embeddings: Singles) -> None:
            gains, of_believed = (after - before for after, before in zip(measure(embeddings), untouched, strict=True))
            self.tallies[key].add(split.labels[held], gains, of_believed)

        if self.untrained is not None:
            start = start.whitened(features, data.train.labels, rows)
            record(self.untrained, start.embed(np.asarray(data.test.inputs)))
        for loss, options, factor in product(self.rates, self.filters, self.factors):
            if all(self.tallies[Setting(loss, options, factor, averaging)].loses_plainly for averaging in TRIED):
                continue
            if loss != run.loss_name and not self.is_in_doubt:
                continue
            trial = self._begin(loss, options, factor, prepared, kept, start)
            begun = embed(trial.embedder)
            while trial.epoch < self.epochs:
                trial.take_steps(lambda what, *done: self.on_progress(f"trial, {what}", *done), ())
                trial.next_epoch({})
            # The layer is linear, and so is the average in its weight.
            moved = embed(trial.embedder) - begun
            for averaging in TRIED:
                record(Setting(loss, options, factor, averaging), begun + averaging * moved)

    def _begin(
        self, loss: str, options: FilterOptions, factor: float, prepared: Prepared, kept: Rows, start: Start
    ) -> Run:
        """Begin a run that trains on some of the classes and tests on others, by the labels given."""
        run = self.run
        rate = run.config.assumed_noise_rate(run.prepared.data.noise_rate)
        config = replace(run.config, labels="", noise_rate=rate, learning_rate=self.rates[loss] * factor)
        method = run.method if loss == run.loss_name else METHODS[loss]
        trial = Run(config, prepared, run.device, method, start=start)
        trial.choose(trial.loss_name, options, averaging=1.0, keeps_features=False)
        if options.kind == AUDIT:
            trial.beliefs.quality = run.beliefs.judge()[torch.from_numpy(kept)]
        trial.fit_inputs(self.on_progress)
        return trial
