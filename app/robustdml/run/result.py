"""The result of a finished run: its embedder, scores of the labels, and a summary."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robustdml.arrays import Ints, Labels, Mask, Rows, Singles, evenly
from robustdml.config import TrainingConfig
from robustdml.evaluation import below_untouched, still_rising
from robustdml.networks.models import Embedder
from robustdml.retrieval import METRICS, retrieval_by_query
from robustdml.run.run import Run
from robustdml.run.sample_log import clean_auc
from robustdml.trained.embedder import IDENTITY, LINEAR, ModelCard, TrainedEmbedder
from robustdml_ops.ops import nearest

# Test samples that the report shows, and how many of those found.
EXAMPLES, FOUND = 6, 5
CLOCK = ("seconds", "samples")  # of an epoch's record: what it took, and not what came of it
MOST_MAPPED = 3000  # Test samples in the map of the report
# The first of these that a run has is its clean score in reports and comparisons.
CLEAN_SCORES = ("log_p_clean_auc", "label_quality_auc", "confidence_auc", "detector_loss_auc", "weight_auc")


@dataclass(frozen=True)
class TrainingResult:
    """A finished run."""

    config: TrainingConfig
    # One record an epoch: loss, seconds, `evaluation.METRICS` where it was evaluated, means of the learnt margins.
    history: list[dict[str, float]]
    embedder: Embedder  # The trained network in eval mode; takes features where the backbone was frozen
    model: TrainedEmbedder  # The same with backbone and preprocessing; embeddings of length 1
    changed: Mask  # Which training labels are wrong, (N,)
    # Scores of each training label in the last epoch, (N,) by name, NaN where there is none: `confidence` of Smooth
    # Proxy-Anchor; `log_p_clean` or `label_quality`, and `kept`, of a filter; `sigma`, `detector_loss` and
    # `above_threshold` of ProcSim; `weight` of BSPML.
    scores: dict[str, Singles]
    # Settings, sizes of the test split, final metrics, and the AUC of each score against the true labels; `untouched`,
    # the metrics before training; `below_untouched`, a warning if the run ended below them; and `still_rising`.
    summary: dict[str, Any]
    retrieved: Ints  # Some test samples, each with those most similar to it, (n, 1 + k)
    mapped: Rows  # Some test samples for a map, (m,)
    embeddings: Singles  # Of these, at length 1, (m, D)
    left_out: tuple[str, ...]  # What was left out of the data, with the reason
    notes: tuple[str, ...]  # How the data was read, where that is not plain, and copies between its parts


def result_of(run: Run, untouched: dict[str, float], out: Path | None) -> TrainingResult:
    """Evaluate a finished run and collect its results; ``out`` is its folder."""
    config = run.config
    model = _model(run)
    samples_of_class = np.bincount(run.prepared.data.test.labels, minlength=run.prepared.data.test.num_classes)
    summary: dict[str, Any] = {
        "method": config.method,
        "noise": run.prepared.data.noise,
        "seed": config.seed,
        "data": run.data_summary,
        # Samples that are alone in their class find nothing, and are no queries.
        "test": {
            "samples": int(samples_of_class.sum()),
            "classes": int((samples_of_class > 0).sum()),
            "alone": int((samples_of_class == 1).sum()),
            **_trained_on(run, samples_of_class),
        },
        **{key: value for key, value in run.history[-1].items() if key not in CLOCK},
        "embedding_size": model.embedding_size,
        "averaging": run.averaging,
        "filter": run.filter_options.kind,
        "learning_rate": run.rates[0],
        "chosen": run.chosen,
        "training_seconds": run.phase_one_seconds + sum(record["seconds"] for record in run.history),
    }
    scores = run.scores()
    summary |= {f"{name}_auc": clean_auc(name, score, run.changed) for name, score in scores.items()}
    summary["clean_auc"] = next((summary[name] for name in CLEAN_SCORES if name in summary), None)
    summary |= {"untouched": untouched, "below_untouched": below_untouched(run.history[-1], untouched)}
    summary["still_rising"] = still_rising(run.history, out)
    embedder = run.averaged().eval()
    data, (found, mapped, embeddings) = run.prepared.data, run.evaluate(_retrieve)
    return TrainingResult(
        config,
        run.history,
        embedder,
        model,
        run.changed,
        scores,
        summary,
        retrieved=found,
        mapped=mapped,
        embeddings=embeddings,
        left_out=data.left_out,
        notes=data.notes,
    )


def _trained_on(run: Run, samples_of_class: Ints) -> dict[str, Any]:
    """How many test classes were trained on; where some were, also the metrics of the samples of the others."""
    train, test = run.prepared.data.train, run.prepared.data.test
    seen = np.isin(np.array(test.class_names, dtype=object), np.array(train.class_names, dtype=object))
    found: dict[str, Any] = {"trained_on": int((seen & (samples_of_class > 0)).sum())}
    if 0 < found["trained_on"] < (samples_of_class > 0).sum():
        rows = np.flatnonzero(~seen[test.labels] & (samples_of_class[test.labels] > 1))

        def measure(embeddings: Singles, labels: Labels, device: torch.device) -> dict[str, float]:
            means = np.nanmean(retrieval_by_query(embeddings, labels, device=device, among=rows), axis=0)
            return dict(zip(METRICS, means.tolist(), strict=True))

        found["unseen"] = run.evaluate(measure) if len(rows) else None
    return found


def _retrieve(embeddings: Singles, labels: Labels, device: torch.device) -> tuple[Ints, Rows, Singles]:
    rows = torch.from_numpy(embeddings).to(device)
    some = torch.arange(0, len(rows), max(len(rows) // EXAMPLES, 1), device=device)[:EXAMPLES]
    # Each finds itself first, or a copy of it.
    found = nearest(rows[some], rows, min(FOUND + 1, len(rows))).indices.cpu().numpy()
    mapped = evenly(len(rows), MOST_MAPPED)
    return found, mapped, embeddings[mapped]


def _model(run: Run) -> TrainedEmbedder:
    """Put what made the features below the embedding layer, so that the whole takes the data as they were given."""
    origin = run.prepared.origin
    network = Embedder(origin.backbone, run.prepared.num_features, None)
    network.head = run.averaged().head
    # Without what the history beside the model has of the clock, so that the same run makes the same file.
    metrics = {name: value for name, value in run.history[-1].items() if name not in CLOCK}
    trained_by = {"config": run.config.as_dict(), "data": run.data_summary, "metrics": metrics}
    card = ModelCard(
        backbone=origin.name,
        input_shape=origin.input_shape,
        num_features=run.prepared.num_features,
        embedding_size=run.prepared.num_features if run.keeps_features else run.embedding_size,
        class_names=run.prepared.data.train.class_names,
        trained_by=trained_by,
        package_version=import_module("robustdml_ops").__version__,
        layer=IDENTITY if run.keeps_features else LINEAR,
    )
    return TrainedEmbedder(network, card).eval()
