"""The arguments of a loss, labels as the kernels take them (int64), and the reduction of one loss per sample."""

import difflib
import inspect
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, TypeGuard

import torch
from torch import Tensor
from typing_extensions import TypedDict

from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.validation import (
    check_finite_embeddings,
    check_labels,
    check_matrix,
    check_same_device,
    check_sample_weights,
    require,
)
from robustdml_ops.losses.several_labels import ClassLabels, several_labels

REDUCTIONS = ("mean", "none")


class LossOptions(TypedDict, total=False):
    """Keyword arguments of every loss."""

    reduction: str
    backend: str | None
    ignore_index: int | None
    distance: Any
    reducer: Any
    embedding_regularizer: Any
    embedding_reg_weight: float
    collect_stats: bool | None


class ClassMatrixOptions(LossOptions, total=False):
    """Of a loss with a class matrix, too."""

    weight_regularizer: Any
    weight_reg_weight: float
    weight_init_func: Any
    negative_share: float
    negative_seed: int
    drop_similar_negatives: float | Literal["own"] | None


class SoftmaxOptions(ClassMatrixOptions, total=False):
    """Of a softmax over classes, too."""

    negative_correction: bool


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


def check_options(kind: type, known: Collection[str], options: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a loss of class ``kind`` does not know, or that exclude each other."""
    for name, value in options.items():
        if name not in known:
            own = [own for own in inspect.signature(kind).parameters if own not in ("options", "args", "kwargs")]
            near = difflib.get_close_matches(name, [*known, *own], 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise TypeError(f"{kind.__name__} has no argument {name!r}{hint}")
        reduces = name == "reducer" or name.endswith("regularizer")
        if reduces and value is not None and options.get("reduction") == "none":
            raise ValueError(
                f"{name} with reduction='none', which gives the losses before they are reduced: leave one out"
            )


def are_several(labels: object) -> TypeGuard[Tensor]:
    """Whether labels are those of several classes a sample."""
    return isinstance(labels, Tensor) and (labels.layout != torch.strided or labels.dim() == 2)


def refuse_candidates(name: str, inputs: LossInputs) -> None:
    """Raise for a reference set that is not the batch itself, for the loss of class ``name``, which takes none."""
    given = inputs.ref_emb is not None and inputs.ref_emb is not inputs.embeddings
    if given or (inputs.ref_labels is not None and inputs.ref_labels is not inputs.labels):
        raise ValueError(
            f"{name} compares samples with its own proxies: leave ref_emb and ref_labels out, or take a loss on pairs"
        )


def checked_labels(loss: Any, inputs: LossInputs) -> ClassLabels:
    """Classes of inputs whose shapes, types and devices fit a loss with a class matrix."""
    check_shapes(loss, inputs)
    labels, weights = inputs.labels, inputs.label_weights
    if are_several(labels) and loss.takes_several_labels:
        dtype = compute_dtype(inputs.embeddings, loss._class_parameter())
        return several_labels(labels, weights, inputs.embeddings, loss.num_classes, dtype)
    if weights is not None:
        raise ValueError(
            "label_weights are of labels (B, K), several for a sample: leave them out beside labels (B,), or "
            "take sample_weights"
        )
    return ClassLabels(class_labels(labels, inputs.embeddings))


def check_shapes(loss: Any, inputs: LossInputs) -> None:
    """Raise where embeddings do not fit the class matrix, or a reference set is given."""
    refuse_candidates(type(loss).__name__, inputs)
    check_matrix("embeddings", inputs.embeddings, columns=loss.embedding_size)
    check_same_device(embeddings=inputs.embeddings, **loss._parameters)


def own_samples(embeddings: Tensor, sample_weights: Tensor | None, dtype: torch.dtype) -> OwnRows:
    """Embeddings without NaN and inf, and checked weights (None: all 1) in the compute type."""
    check_finite_embeddings(embeddings)
    if sample_weights is not None:
        sample_weights = check_sample_weights(sample_weights, embeddings.new_empty(len(embeddings), dtype=dtype))
    return {"embeddings": embeddings, "sample_weights": sample_weights}


def class_labels(labels: object, embeddings: Tensor) -> Tensor:
    """Class numbers (B,) int64 from integers, truth values, or floating-point numbers that are whole."""
    _check_given(labels)
    if isinstance(labels, Tensor):
        if labels.dtype == torch.bool:
            labels = labels.long()
        elif labels.is_floating_point():
            given, labels = labels, labels.long()
            whole = labels == given
            require(whole.all(), lambda: f"labels must be numbers of classes, got {given[~whole][:3].tolist()}")
    return check_labels(labels, embeddings)


def pair_labels(
    labels: object, embeddings: Tensor, ref_labels: object = None, ref_emb: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Labels of anchors and of candidates, int64, equal where they were equal; the same tensor stays the same."""
    _check_given(labels)
    same = ref_labels is labels
    vectors = [one for one in (labels, ref_labels) if isinstance(one, Tensor) and one.dim() == 1]
    if any(one.is_floating_point() or one.dtype == torch.bool for one in vectors):
        labels, ref_labels = _numbered(labels, labels if ref_labels is None else ref_labels)
    of_batch = check_labels(labels, embeddings)
    if ref_emb is None:
        return of_batch, None
    of_candidates = check_labels(of_batch if same else ref_labels, ref_emb, "ref_labels", "ref_emb")
    return of_batch, of_batch if same else of_candidates


def _check_given(labels: object) -> None:
    if labels is None:
        raise ValueError("labels are missing: give (B,) numbers, or pairs as indices_tuple to a loss on pairs")


def _numbered(labels: object, ref_labels: object) -> tuple[object, object]:
    """Both vectors as places among their distinct values; NaN equals nothing, itself included."""
    if not isinstance(labels, Tensor) or not isinstance(ref_labels, Tensor):
        return labels, ref_labels
    both = torch.cat([labels, ref_labels.to(labels.device)])
    places = torch.unique(both, return_inverse=True)[1]
    return places[: len(labels)], places[len(labels) :]


def reduce_samples(losses: Tensor, sample_weights: Tensor | None, reduction: str) -> Tensor:
    """Weighted losses (B,), or their mean (): Σ w_i ℓ_i / max(1, number of w_i > 0)."""
    if sample_weights is None:
        return losses if reduction == "none" else losses.sum() / max(len(losses), 1)
    weights = check_sample_weights(sample_weights, losses)
    weighted = weights * losses
    if reduction == "none":
        return weighted
    return weighted.sum() / (weights > 0).sum().clamp(min=1)
