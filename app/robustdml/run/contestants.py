"""The settings that trials compare: which filters and learning rates are worth a try on this data."""

import math
from dataclasses import replace

import numpy as np
import torch

from robustdml.arrays import Mask, Rows
from robustdml.filters.filter import KEPT, LEAST_QUALITY
from robustdml.filters.options import AUDIT, FILTERS, NO_FILTER, FilterOptions
from robustdml.run.held_out import FEW, MOST_SAMPLES
from robustdml.run.run import Run

# Share of the labels that the audit keeps and PRISM leaves out, from which on PRISM filters in place of the audit. On
# sets to choose by, labels wrong at random reached 0.07; those of like samples or similar classes 0.08 to 0.47.
MOST_OVERLOOKED = 0.1
# Fewer samples teach PRISM too little: there it left out many right labels.
SAMPLES_FOR_PRISM = 1000
# Samples of a class, in the mean, below which trials compare losses: there pairs of a class are few.
SMALL = 8
# Factor of the learning rate that is tried as well where the run has few steps. A trial has about a quarter of them: in
# a longer run what suits the trial goes too far.
FASTER, FEW_STEPS = 3.0, 300


def filters_to_try(run: Run) -> tuple[list[FilterOptions], float]:
    """The filters among which trials choose, of equally good ones the last; and the share that the audit overlooks."""
    asked = run.config.filter_options
    if not asked.on_trial or asked.kind not in FILTERS:
        return [asked], 0.0
    if has_few_classes(run):
        return [FilterOptions(NO_FILTER), FilterOptions(AUDIT)], 0.0
    if len(run.labels) < SAMPLES_FOR_PRISM:
        return [FilterOptions(AUDIT)], 0.0
    rows = np.random.default_rng(run.config.seed).permutation(len(run.labels))[:MOST_SAMPLES]
    audited = (run.beliefs.judge()[rows] >= LEAST_QUALITY).numpy()
    overlooked = float((audited & ~kept_by(asked, run, rows)).mean())
    return [replace(asked, on_trial=False) if overlooked > MOST_OVERLOOKED else FilterOptions(AUDIT)], overlooked


def kept_by(options: FilterOptions, run: Run, rows: Rows) -> Mask:
    """Say which of these labels PRISM keeps by the embeddings before training, (n,)."""
    prism, embeddings = run.make_filter(options), run.embed_training_split()
    prism.fit(run.beliefs.judge, lambda: embeddings)
    kept = torch.full((len(run.labels),), torch.nan, device=run.device)
    for batch in np.array_split(rows, math.ceil(len(rows) / run.config.batch_size)):
        own = run.world.part(batch)
        _, observed = prism.judge(embeddings[own].to(run.device), own, lambda: None)
        kept[own] = observed[KEPT].float()
    return np.asarray(run.world.merged(kept)[rows].cpu() == 1)


def factors_to_try(run: Run) -> tuple[float, ...]:
    """Factors of the learning rate: of one that is named, with few classes and in long runs none but 1."""
    few_steps = run.config.epochs * len(run.sampler) <= FEW_STEPS
    free = run.config.learning_rate is None and not has_few_classes(run)
    return (1.0, FASTER) if few_steps and free else (1.0,)


def has_small_classes(run: Run) -> bool:
    """Whether there are many classes, at least one a process, of fewer than `SMALL` samples in the mean."""
    classes = len(np.unique(run.labels))
    return not has_few_classes(run) and run.world.size <= classes and len(run.labels) < SMALL * classes


def has_few_classes(run: Run) -> bool:
    """Whether there are fewer than `FEW` training classes: the held-out ones tell little then."""
    return len(np.unique(run.labels)) < FEW
