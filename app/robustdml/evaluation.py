"""Retrieval metrics, by pytorch-metric-learning, and how well a score tells right labels from wrong ones."""

from functools import partialmethod

import numpy as np
import torch
from numpy.typing import NDArray
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import roc_auc_score
from torch import Tensor

from robustdml.config import UNTRAINED
from robustdml.errors import UsageError
from robustdml.networks.models import embed_in_batches
from robustdml.networks.preparation import Prepared
from robustdml.progress import OnProgress
from robustdml_ops.ops import nearest

LARGEST_RECALL = 8

# What `retrieval_metrics` gives, and what people call it.
METRICS = {
    "precision_at_1": "Recall@1",
    "recall_at_2": "Recall@2",
    "recall_at_4": "Recall@4",
    "recall_at_8": "Recall@8",
    "r_precision": "R-precision",
    "mean_average_precision_at_r": "MAP@R",
}


class _RetrievalMetrics(AccuracyCalculator):  # type: ignore[misc]
    """The library's metrics, and Recall@K for a few K (its precision_at_1 is Recall@1)."""

    def _recall(
        self, k: int, knn_labels: Tensor, query_labels: Tensor, not_lone_query_mask: Tensor, **_: object
    ) -> float:
        found = (knn_labels[:, :k] == query_labels[:, None]).any(dim=1)
        return float(found[not_lone_query_mask].double().mean())

    calculate_recall_at_2 = partialmethod(_recall, 2)
    calculate_recall_at_4 = partialmethod(_recall, 4)
    calculate_recall_at_8 = partialmethod(_recall, 8)


def retrieval_metrics(
    embeddings: NDArray[np.generic], labels: NDArray[np.int64], device: torch.device | None = None
) -> dict[str, float]:
    """Compute `METRICS` of (N, D) embeddings by cosine, over the samples that are not alone in their class."""
    largest_class = int(np.bincount(labels).max(initial=0))
    if largest_class < 2:
        raise UsageError("retrieval needs a test class with at least 2 samples")
    if not np.isfinite(embeddings).all():
        raise UsageError("embeddings hold NaN or infinite values: the training diverged; try a smaller learning rate")
    calculator = _RetrievalMetrics(
        include=tuple(METRICS),
        k="max_bin_count" if largest_class > LARGEST_RECALL else min(LARGEST_RECALL, len(labels) - 1),
        device=device or torch.device("cpu"),
        knn_func=lambda queries, k, gallery, exclude_self: nearest(queries, gallery, k, exclude_self=exclude_self),
    )
    # The library makes tensors of them, and PyTorch warns of one over a file that is mapped for reading alone.
    arrays = (array if array.flags.writeable else array.copy() for array in (embeddings, labels))
    return dict(calculator.get_accuracy(*arrays))


def retrieval_by_sample(
    embeddings: Tensor, labels: NDArray[np.int64], device: torch.device | None = None
) -> NDArray[np.float64]:
    """Recall@1 and MAP@R of each sample as in `retrieval_metrics`, (N, 2); NaN for one that is alone in its class."""
    rows, numbers = embeddings.to(device), torch.from_numpy(labels).to(device)
    others = (numbers.bincount()[numbers] - 1)[:, None]
    ranks = torch.arange(1, max(int(others.max()), 1) + 1, device=device)
    found = nearest(rows, rows, len(ranks), exclude_self=True)[1]
    right = (numbers[found] == numbers[:, None]).double()
    precisions = right * (ranks <= others) * right.cumsum(1) / ranks
    # 0 / 0 is NaN.
    return torch.cat([right[:, :1] * others / others, precisions.sum(1, keepdim=True) / others], 1).cpu().numpy()


def detection_auc(score: NDArray[np.float32], changed: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve of a clean score against the truth."""
    judged = ~np.isnan(score)
    if changed[judged].all() or not changed[judged].any():
        return None
    return float(roc_auc_score(~changed[judged], score[judged]))


# What a run must not lose, and by how much it may fall before it is told: one point.
JUDGED = ("precision_at_1", "mean_average_precision_at_r")
TOLERANCE = 0.01
TITLE = "Untouched features"
WAY_OUT = "use the features as they are, or try fewer epochs, a smaller learning rate or another method"


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
    return f"Training did harm: {'; '.join(lower)}. The way out: {WAY_OUT}." if lower else None
