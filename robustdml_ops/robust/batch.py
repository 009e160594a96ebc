"""What a training step hands over: rows, labels and sample ids, checked once."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.validation import (
    check_finite_embeddings,
    check_id_range,
    check_label_range,
    check_labels,
    check_matrix,
    check_same_device,
    check_sample_ids,
)


class Batch(NamedTuple):
    """A batch whose shapes, types, devices and sample ids have been checked."""

    X: Tensor  # (B, D) floating point
    labels: Tensor  # (B,) int64
    sample_ids: Tensor | None  # (B,) int64


def check_batch(
    name: str, rows: Tensor, labels: Tensor, sample_ids: Tensor | None, D: int, N: int | None, state: Tensor | None
) -> Batch:
    """Check everything but the values of rows and labels: some callers hand those to an op that looks at them.

    ``name`` is what errors call the rows; ``state`` is a tensor on whose device they must lie. With a number of samples
    N, ids are required and their range is checked.
    """
    check_matrix(name, rows, columns=D)
    check_same_device(**{name: rows, "state": state})
    labels = check_labels(labels, rows)
    if sample_ids is not None:
        sample_ids = check_ids(sample_ids, len(labels), N, labels.device)
    elif N is not None:
        raise ValueError("sample_ids is missing, and num_samples needs them: pass (B,) integers")
    return Batch(rows, labels, sample_ids)


def check_ids(sample_ids: object, B: int, N: int | None, device: torch.device) -> Tensor:
    """Sample ids as (B,) int64 on ``device``; in 0 … N−1 where N is known."""
    ids = check_sample_ids(sample_ids, B).to(device, non_blocking=True)
    if N is not None:
        check_id_range(ids, N)
    return ids


def check_values(batch: Batch, num_classes: int) -> None:
    """Labels in 0 … C−1; on the CPU, embeddings that are finite."""
    check_label_range(batch.labels, num_classes)
    check_finite_embeddings(batch.X)


def check_keep(keep: object, labels: Tensor) -> Tensor:
    """``keep`` as (B,) bool on the device of the labels."""
    if not isinstance(keep, Tensor) or keep.shape != labels.shape or keep.dtype != torch.bool:
        found = f"{tuple(keep.shape)} of {keep.dtype}" if isinstance(keep, Tensor) else type(keep).__name__
        raise ValueError(
            f"keep must be bool of shape ({len(labels)},), got {found}: pass PRISM's result.keep, or a mask of your own"
        )
    return keep.to(labels.device)
