"""What a process brings to the batch of all, where the classes of a loss are divided among processes."""

from torch import Tensor

from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.validation import check_finite_embeddings, check_label_range, check_sample_weights
from robustdml_ops.losses.families.metric_loss import Batch
from robustdml_ops.losses.labels import class_labels


def own_rows(batch: Batch, proxies: Tensor, num_classes: int) -> dict[str, Tensor | None]:
    """Embeddings, labels and weights of a batch whose embeddings have been checked for their shape."""
    labels = class_labels(batch.labels, batch.embeddings)
    check_label_range(labels, num_classes)
    return {**own_samples(batch, proxies), "labels": labels}


def own_samples(batch: Batch, proxies: Tensor) -> dict[str, Tensor | None]:
    """Embeddings and weights."""
    embeddings, weights = batch.embeddings, batch.sample_weights
    check_finite_embeddings(embeddings)
    if weights is not None:
        samples = embeddings.new_empty(len(embeddings), dtype=compute_dtype(embeddings, proxies))
        weights = check_sample_weights(weights, samples)
    return {"embeddings": embeddings, "sample_weights": weights}
