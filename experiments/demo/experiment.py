"""The demo: training with half the labels wrong, nearest neighbours of some queries, times of the losses."""

import os
import platform
import time

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.demo.plots import Neighbours
from experiments.demo.report import DemoOutcome
from experiments.demo.timing import Shape, measure
from robustdml.config import TrainingConfig
from robustdml.data import RetrievalData
from robustdml.data.image_files import Inputs
from robustdml.networks.models import apply_in_batches
from robustdml.networks.preparation import prepare, resolve_device
from robustdml.noise import with_wrong_labels
from robustdml.progress import OnProgress
from robustdml.retrieval import retrieval_metrics
from robustdml.run.result import TrainingResult
from robustdml.train import train
from robustdml_ops.ops import nearest

NOISE = "symmetric:0.5"
METHODS_SHOWN = ("robust", "proxy-anchor", "smooth-proxy-anchor", "adaptive-proxy-anchor")
QUERIES = 7
FOUND = 5


def run_demo(images: RetrievalData, seeds: int, epochs: int, shape: Shape, on_progress: OnProgress) -> DemoOutcome:
    """Train, search and time; return the contents of the report."""
    start = time.perf_counter()
    cpu = resolve_device("cpu")
    features = prepare(TrainingConfig(), images, cpu, on_progress).data
    frozen = retrieval_metrics(np.asarray(features.test.inputs), features.test.labels)
    runs: dict[str, list[TrainingResult]] = {}
    for method in METHODS_SHOWN:
        for seed in range(seeds):
            on_progress(f"{method}, seed {seed}", seed, seeds)
            config = TrainingConfig(method=method, seed=seed, epochs=epochs)
            runs.setdefault(method, []).append(
                train(config, with_wrong_labels(features, NOISE, seed), device="cpu", untouched=frozen)
            )
    neighbours = _neighbours({method: runs[method][0] for method in ("proxy-anchor", "robust")}, features, images)
    on_progress("times", 0, 0)
    timings = measure(shape)
    changed = runs["proxy-anchor"][0].changed
    return DemoOutcome(
        data_line=(
            f"{images.train.num_classes} characters in up to 16 typefaces, {len(images.train):,} training images, "
            f"{changed.sum():,} of them with a wrong label; tested on {len(images.test):,} images of "
            f"{images.test.num_classes} other characters."
        ),
        noise_rate=float(changed.mean()),
        frozen_metrics=frozen,
        runs=runs,
        neighbours=neighbours,
        shape=shape,
        timings=timings,
        machine=(
            f"Python {platform.python_version()}, PyTorch {torch.__version__}, {torch.get_num_threads()} threads on "
            f"{os.cpu_count()} processors."
        ),
        seconds=time.perf_counter() - start,
    )


def _neighbours(runs: dict[str, TrainingResult], features: RetrievalData, images: RetrievalData) -> list[Neighbours]:
    labels, pixels = images.test.labels, np.asarray(images.test.inputs, np.uint8)
    queries = np.random.default_rng(0).choice(len(labels), min(QUERIES, len(labels)), replace=False)
    rows = {method: _nearest(run, features.test.inputs, queries) for method, run in runs.items()}
    return [
        Neighbours(
            pixels[query],
            {
                method: [(pixels[other], bool(labels[other] == labels[query])) for other in found[row]]
                for method, found in rows.items()
            },
        )
        for row, query in enumerate(queries)
    ]


def _nearest(run: TrainingResult, features: Inputs, queries: NDArray[np.int64]) -> NDArray[np.int64]:
    embeddings = torch.from_numpy(apply_in_batches(run.embedder, features, torch.device("cpu")))
    found: NDArray[np.int64] = nearest(embeddings, embeddings, FOUND, exclude_self=True).indices.numpy()
    return found[queries]
