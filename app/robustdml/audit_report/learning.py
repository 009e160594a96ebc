"""Embeddings to judge by: learnt with ``robust`` from the labels as they are, in one run or several."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from robustdml.arrays import Array, Rows, Singles
from robustdml.cache import read_array, write_checked
from robustdml.config import PRINCIPAL, UNTRAINED, WHITENED, TrainingConfig
from robustdml.data import RetrievalData
from robustdml.data.dataset import Samples
from robustdml.loss_inputs import MARGIN
from robustdml.methods import METHODS
from robustdml.networks.models import apply_in_batches
from robustdml.networks.preparation import prepare, resolve_device
from robustdml.progress import OnProgress
from robustdml.run.checkpoint import CHECKPOINT
from robustdml.train import train

# Samples that a run evaluates itself on at its end; nothing depends on that.
_EVALUATED = 64


def learn_embeddings(
    samples: Samples,
    rows: Rows,
    config: TrainingConfig,
    runs: int,
    out: Path,
    device: str,
    on_progress: OnProgress,
) -> tuple[Singles, Array, Singles]:
    """Train on some rows, and embed all samples; also give their features before training, and margins in training.

    What is in `out` is taken up. Where the backbone is untrained, its features tell nothing: then both are the same.
    The margins (N,) are means over epochs and runs, NaN for samples that were not trained on.
    """
    # Trials and the whitened start serve retrieval of unseen classes. The audit was measured without both.
    start = PRINCIPAL if config.start is None and config.layer_start == WHITENED else config.start
    config = replace(config, filter=replace(config.filter_options, on_trial=False), start=start)
    # Class by class, those with several samples first: others find nothing.
    few = np.lexsort((samples.labels, np.bincount(samples.labels)[samples.labels] < 2))[:_EVALUATED]
    data = RetrievalData(samples.source, samples, samples.take(few, samples.labels[few], samples.class_names))
    learnt_from = data
    if len(rows) < len(samples):
        learnt_from = replace(data, train=samples.take(rows, samples.labels[rows], samples.class_names))
    # Features of the frozen backbone are made once for all runs.
    prepared = prepare(config, data, resolve_device(device), on_progress)
    method = replace(METHODS[config.method], inputs=(*METHODS[config.method].inputs, "margins"))
    parts, margins = [], np.full((runs, len(samples)), np.nan, dtype=np.float32)
    for number in range(runs):
        folder = out / f"run-{number}"
        stored, of_labels = folder / "embeddings.npy", folder / "margins.npy"
        if not (stored.exists() and of_labels.exists()):
            result = train(
                replace(config, seed=config.seed + number),
                learnt_from,
                out=folder,
                resume=(folder / CHECKPOINT).exists(),
                device=device,
                on_progress=lambda what, *steps, run=number + 1: on_progress(f"run {run} of {runs}, {what}", *steps),
                evaluate_each_epoch=False,
                may_keep_features=False,
                method=method,
            )
            inputs = samples.inputs if config.finetune else prepared.data.train.inputs
            embeddings = apply_in_batches(result.embedder, inputs, resolve_device(device), on_progress=on_progress)
            lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
            unit = embeddings / np.maximum(lengths, np.finfo(np.float32).tiny)
            write_checked(of_labels, partial(np.save, arr=result.scores[MARGIN]))
            write_checked(stored, partial(np.save, arr=unit))
        parts.append(read_array(stored))
        margins[number, rows] = read_array(of_labels)
    learnt = np.concatenate(parts, axis=1)
    untouched = learnt if prepared.origin.name == UNTRAINED else prepared.frozen_features()
    return learnt, untouched, margins.mean(0)
