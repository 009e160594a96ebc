"""A run against its untouched features."""

from collections.abc import Sequence
from pathlib import Path

import torch

from robustdml.arrays import Doubles, Ints, Labels
from robustdml.config import UNTRAINED
from robustdml.networks.models import embed_in_batches
from robustdml.networks.preparation import Prepared
from robustdml.progress import OnProgress
from robustdml.retrieval import METRICS, Vectors, retrieval_by_query, retrieval_metrics

# What a run must not lose, and by how much it may fall before it is told: one point.
JUDGED = ("precision_at_1", "mean_average_precision_at_r")
TOLERANCE = 0.01
TITLE = "Untouched features"


def judged(embeddings: Vectors, labels: Labels, among: Ints | None = None) -> Doubles:
    """Recall@1 and MAP@R of each sample, or of some, among all others, (N, 2); NaN for the rest and for one alone."""
    return retrieval_by_query(embeddings, labels, among=among)[:, [list(METRICS).index(name) for name in JUDGED]]


def untouched_metrics(prepared: Prepared, device: torch.device, on_progress: OnProgress) -> dict[str, float]:
    """Evaluate the test split as it is before the first step, under the cosine."""
    test = prepared.data.test
    features = embed_in_batches(prepared.backbone, test.inputs, device, on_progress=on_progress)
    return retrieval_metrics(features, test.labels, device)


def falls_short(value: float, reference: float) -> bool:
    """Tell whether a metric is more than one point below another."""
    return round(reference - value, 9) > TOLERANCE


def untouched_title(backbone: str) -> str:
    """Name the features that a run is held against."""
    return f"{TITLE} of the untrained network" if backbone == UNTRAINED else TITLE


def below_untouched(metrics: dict[str, float], untouched: dict[str, float]) -> str | None:
    """Say whether training has done harm."""
    lower = [
        f"{METRICS[key]} is {metrics[key]:.3f}, and {untouched[key]:.3f} with the features untouched"
        for key in JUDGED
        if falls_short(metrics[key], untouched[key])
    ]
    way_out = "use the features as they are, or try fewer epochs, a smaller learning rate or another method"
    return f"Training did harm: {'; '.join(lower)}. The way out: {way_out}." if lower else None


def still_rising(history: Sequence[dict[str, float]], out: Path | None) -> str | None:
    """Say how to go on where the last third of the epochs has gained more than a point of MAP@R."""
    epochs, key = len(history), JUDGED[1]
    before = history[epochs - max(epochs // 3, 1) - 1].get(key) if epochs > 1 else None
    if before is None or not falls_short(before, history[-1][key]):
        return None
    way_on = f"epochs {2 * epochs}" if out is None else f"robustdml train --resume --out {out} --epochs {2 * epochs}"
    gain = f"from {before:.3f} to {history[-1][key]:.3f} in the last third of the epochs"
    return f"{METRICS[key]} was still rising, {gain}. To go on: {way_on}"
