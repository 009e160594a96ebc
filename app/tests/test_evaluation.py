import numpy as np
import pytest

from robustdml.errors import UsageError
from robustdml.evaluation import detection_auc, retrieval_metrics


def brute_force(embeddings, labels):
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    right = labels[np.argsort(-similarity, axis=1)[:, :-1]] == labels[:, None]
    sizes = (labels[:, None] == labels[None]).sum(1) - 1
    counted = sizes > 0
    recall = {k: right[counted, :k].any(1).mean() for k in (1, 2, 4, 8)}
    r_precision = np.mean([row[:size].mean() for row, size in zip(right[counted], sizes[counted], strict=True)])
    average = [
        sum(row[: rank + 1].mean() for rank in range(size) if row[rank]) / size
        for row, size in zip(right[counted], sizes[counted], strict=True)
    ]
    return recall, r_precision, np.mean(average)


@pytest.mark.parametrize("sizes", [[7, 3, 12, 1], [2, 3], [30, 30, 30], [1, 1, 2]])
def test_metrics_are_what_their_names_say(sizes):
    random = np.random.default_rng(len(sizes))
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = random.normal(size=(len(sizes), 5))
    embeddings = (centres[labels] + 1.5 * random.normal(size=(len(labels), 5))).astype(np.float32)
    metrics = retrieval_metrics(embeddings, labels)
    recall, r_precision, average = brute_force(embeddings, labels)
    assert metrics["precision_at_1"] == pytest.approx(recall[1])
    for k in (2, 4, 8):
        assert metrics[f"recall_at_{k}"] == pytest.approx(recall[k])
    assert metrics["r_precision"] == pytest.approx(r_precision)
    assert metrics["mean_average_precision_at_r"] == pytest.approx(average)


def test_nothing_to_find_is_an_error():
    with pytest.raises(UsageError, match="at least 2 samples"):
        retrieval_metrics(np.eye(3, dtype=np.float32), np.arange(3))
    with pytest.raises(UsageError, match="NaN"):
        retrieval_metrics(np.full((4, 2), np.nan, dtype=np.float32), np.zeros(4, dtype=np.int64))


def test_detection_auc():
    changed = np.array([True, True, False, False])
    assert detection_auc(np.array([0.1, 0.4, 0.3, 0.9], np.float32), changed) == pytest.approx(0.75)
    assert detection_auc(np.ones(4, np.float32), np.zeros(4, bool)) is None
    assert detection_auc(np.ones(4, np.float32), np.ones(4, bool)) is None
