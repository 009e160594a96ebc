"""The arguments of a loss, samples of several classes among them, and the reduction of one loss per sample."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.labels import ABSENT, check_distinct, check_label_range, listed_labels, signed_labels
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.validation import (
    INTEGERS,
    check_elements,
    check_finite_embeddings,
    check_sample_weights,
    check_tensor,
    largest_weight,
)


class LossInputs(NamedTuple):
    """The arguments of a call. PyTorch 2.6 compiles no ``_replace`` of it."""

    embeddings: Tensor
    labels: Tensor | None
    indices_tuple: tuple[Tensor, ...] | None = None
    ref_emb: Tensor | None = None
    ref_labels: Tensor | None = None
    sample_weights: Tensor | None = None
    margins: Tensor | None = None  # of the samples, in losses with a margin
    label_weights: Tensor | None = None  # (B, K), of labels (B, K)
    sample_ids: Tensor | None = None  # (B,), in losses on pairs; beside candidates with ids of their own, (m,)
    ref_ids: Tensor | None = None


def refuse_candidates(why: str, inputs: LossInputs) -> None:
    """Raise for a reference set that is not the batch itself, for a loss that takes none, and say ``why``."""
    given = inputs.ref_emb is not None and inputs.ref_emb is not inputs.embeddings
    if given or (inputs.ref_labels is not None and inputs.ref_labels is not inputs.labels):
        raise ValueError(
            f"{why}: leave ref_emb and ref_labels out, or take a loss that has them, such as MultiSimilarityLoss"
        )


def own_samples(embeddings: Tensor, sample_weights: Tensor | None, dtype: torch.dtype) -> OwnRows:
    """Embeddings without NaN and inf, and checked weights (None: all 1) in the compute type."""
    check_finite_embeddings(embeddings)
    if sample_weights is not None:
        sample_weights = check_sample_weights(sample_weights, embeddings.new_empty(len(embeddings), dtype=dtype))
    return {"embeddings": embeddings, "sample_weights": sample_weights}


def reduce_samples(
    losses: Tensor, sample_weights: Tensor | None, reduction: str, counts: Tensor | None = None
) -> Tensor:
    """Weighted losses (B,), their sum (), or their mean (): Σ w_i ℓ_i / max(1, number of w_i > 0).

    ``counts`` (B,), ≥ 0: as how many samples each counts in that number, and at least 1 is then any that is positive.
    """
    weights = None if sample_weights is None else check_sample_weights(sample_weights, losses)
    weighted = losses if weights is None else weights * losses
    if reduction != "mean":
        return weighted if reduction == "none" else weighted.sum()
    if counts is not None:
        number = (counts if weights is None else counts * (weights > 0)).sum()
        return weighted.sum() / torch.where(number > 0, number, 1)
    if weights is None:
        return weighted.sum() / max(len(losses), 1)
    return weighted.sum() / (weights > 0).sum().clamp(min=1)


class ClassLabels(NamedTuple):
    """The class of each sample; or several, distinct and ascending, with their weights."""

    labels: Tensor  # (B,) int64; or (B, K), with ABSENT where a sample has fewer than K
    weights: Tensor | None = None  # (B, K), compute type, 0 where ABSENT; None: none were given

    def shares(self, dtype: torch.dtype) -> Tensor:
        """Weights of several classes, (B, K); where none were given, equal ones that sum to 1 for each sample."""
        if self.weights is not None:
            return self.weights
        present = (self.labels != ABSENT).to(dtype)
        return present / present.sum(1, keepdim=True).clamp(min=1)


def several_labels(
    labels: Tensor, weights: Tensor | None, embeddings: Tensor, num_classes: int, dtype: torch.dtype
) -> ClassLabels:
    """Checked labels (B, K), or sparse (B, C), and their weights (B, K); those of a class listed twice are added."""
    B = len(embeddings)
    if labels.layout != torch.strided:
        if weights is not None:
            raise ValueError("label_weights beside sparse labels, whose values are the weights: leave them out")
        labels, weights = listed_labels(labels, B, num_classes)
    labels = signed_labels(labels)
    if labels.dtype not in INTEGERS:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} must be integers, got {labels.dtype}: numbers of classes, with "
            "label_weights of the same shape; a matrix of weights (B, C) is given as labels.to_sparse()"
        )
    if labels.dim() != 2 or len(labels) != B or labels.shape[1] == 0:
        raise ValueError(
            f"labels must have shape ({B},) or ({B}, K), one row for each of embeddings, got {tuple(labels.shape)}"
        )
    labels = labels.to(embeddings.device, torch.int64, non_blocking=True)
    check_label_range(labels.masked_fill(labels == ABSENT, 0), num_classes)
    if weights is None:
        check_distinct(labels)
    ordered, order = labels.sort(dim=1, stable=True)
    place = torch.nn.functional.pad((ordered[:, 1:] != ordered[:, :-1]).cumsum(1), (1, 0))
    labels = torch.full_like(ordered, ABSENT).scatter(1, place, ordered)
    if weights is None:
        return ClassLabels(labels)
    weights = _checked_weights(weights, labels).to(embeddings.device, dtype)
    weights = torch.zeros_like(weights).scatter_add(1, place, weights.gather(1, order))
    return ClassLabels(labels, weights.masked_fill(labels == ABSENT, 0))


def _checked_weights(weights: Tensor, labels: Tensor) -> Tensor:
    weights = check_tensor("label_weights", weights)
    if weights.shape != labels.shape or not (weights.is_floating_point() or weights.dtype == torch.bool):
        raise ValueError(
            f"label_weights must be floating point, of the shape of labels, {tuple(labels.shape)}, got "
            f"{tuple(weights.shape)} of {weights.dtype}"
        )
    largest = largest_weight(torch.float32)
    wanted = f": weights must be finite, not negative and at most {largest:.2g}"
    check_elements("label_weights", weights, lambda values: (values >= 0) & (values <= largest), wanted)
    return weights
