"""Labels of a batch: two special values, checks, and the labels in order of the batch and, for the CPU, sorted."""

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import in_registry
from robustdml_ops.engine.op_arguments import op_options
from robustdml_ops.engine.validation import INTEGERS, check_range, check_tensor, require

# The label of a row to leave out: an empty slot of a memory bank, a sample of weight 0. Any other int64 is a class.
ABSENT: int = torch.iinfo(torch.int64).min
# The label of a sample whose class is in the shard of another process: a negative for every local class.
ELSEWHERE = -1
# Taken as int64: PyTorch computes with them hardly anywhere.
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
# The native module sorts up to so many labels in less time than PyTorch takes for the call.
_FEW = 2048


def are_several(labels: object) -> TypeGuard[Tensor]:
    """Whether labels have several classes a sample, (B, K)."""
    return isinstance(labels, Tensor) and (labels.layout != torch.strided or labels.dim() == 2)


def with_label(labels: Tensor, label: int) -> Tensor:
    """Which labels are ``label``, bool; none are where their type cannot hold it."""
    return (labels if labels.is_floating_point() else labels.long()) == label


def signed_labels(labels: Any, name: str = "labels") -> Any:
    """Labels of the larger unsigned types as int64, and all else as it is."""
    if not isinstance(labels, Tensor) or labels.dtype not in _UNSIGNED:
        return labels
    signed = labels.long()
    if labels.dtype == torch.uint64 and labels.layout == torch.strided:
        require(
            (signed >= 0).all(),
            lambda: (
                f"{name} must be below 2**63, got {int(signed[signed < 0][0]) % 2**64}: number them, as "
                f"torch.from_numpy(numpy.unique({name}.cpu(), return_inverse=True)[1]) does"
            ),
        )
    return signed


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
    if are_several(labels) or are_several(ref_labels):
        of_batch = shared_labels(labels, embeddings)
        if ref_emb is None or same:
            return of_batch, None if ref_emb is None else of_batch
        return of_batch, shared_labels(ref_labels, ref_emb, "ref_labels", "ref_emb")
    labels, ref_labels = signed_labels(labels), signed_labels(ref_labels, "ref_labels")
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
    """Both vectors as places among their distinct values but ABSENT; NaN equals nothing, itself included."""
    if not isinstance(labels, Tensor) or not isinstance(ref_labels, Tensor):
        return labels, ref_labels
    both = (labels, ref_labels.to(labels.device))
    absent = torch.cat([one.double() == ABSENT for one in both])
    places = torch.unique(torch.cat(both), return_inverse=True)[1].masked_fill(absent, ABSENT)
    return places[: len(labels)], places[len(labels) :]


def listed_labels(matrix: Tensor, samples: int, num_classes: int) -> tuple[Tensor, Tensor]:
    """Columns and values of a sparse matrix (B, C), as (B, K) each."""
    if matrix.shape != (samples, num_classes):
        raise ValueError(
            f"sparse labels must have shape ({samples}, {num_classes}), a weight for each sample and class, got "
            f"{tuple(matrix.shape)}"
        )
    matrix = matrix.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    (rows, columns), values = matrix.indices(), matrix.values()
    counts = torch.bincount(rows, minlength=samples)
    places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    shape = (samples, max(1, int(counts.max()) if samples else 0))
    labels = columns.new_full(shape, ABSENT).index_put((rows, places), columns)
    if not values.is_floating_point():
        values = values.float()
    return labels, values.new_zeros(shape).index_put((rows, places), values)


def shared_labels(labels: object, embeddings: Tensor, name: str = "labels", of: str = "embeddings") -> Tensor:
    """Labels (B,) or (B, K) int64 of pairs: integers, or the places of a sparse matrix (B, C) where it is not 0."""
    if isinstance(labels, Tensor) and labels.layout != torch.strided:
        found, values = listed_labels(labels, len(embeddings), labels.shape[-1])
        labels = found.masked_fill(values == 0, ABSENT)
    checked = check_labels(labels, embeddings, name, of, several=True)
    if checked.dim() == 2:
        check_distinct(checked, name)
    return checked


def without_samples(labels: Tensor, absent: Tensor) -> Tensor:
    """Labels (B,) or (B, K), ABSENT for the samples ``absent`` (B,) bool."""
    return labels.masked_fill(absent if labels.dim() == 1 else absent[:, None], ABSENT)


def check_labels(
    labels: object, embeddings: Tensor, name: str = "labels", of: str = "embeddings", several: bool = False
) -> Tensor:
    """Labels as (B,), or (B, K) if ``several``, int64 on the device of the embeddings; their range is not checked."""
    labels = check_tensor(name, signed_labels(labels, name))
    if labels.dtype not in INTEGERS:
        raise ValueError(f"{name} must be integers, got {labels.dtype}: convert them with {name}.long()")
    if labels.shape != embeddings.shape[:1] and not (
        several and labels.dim() == 2 and labels.shape[:1] == embeddings.shape[:1] and labels.shape[1]
    ):
        raise ValueError(
            f"{name} must have shape ({len(embeddings)},), one for each row of {of}, got {tuple(labels.shape)}"
        )
    return labels.to(embeddings.device, torch.int64, non_blocking=True)


def check_label_range(labels: Tensor, num_classes: int) -> None:
    """Every label in 0 … num_classes − 1: IndexError on the CPU, a device-side assertion elsewhere (no host sync)."""
    check_range(labels, num_classes, "label", "labels", "num_classes")


def check_distinct(labels: Tensor, name: str = "labels") -> None:
    """Refuse a class that occurs twice in a row of labels (B, K); negative numbers stand for no class."""
    ordered = labels.sort(1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    require(
        ~twice.any(),
        lambda: (
            f"{name} must be distinct for each sample, got class {int(ordered[:, 1:][twice][0])} twice: fill up with "
            f"ABSENT; a matrix (B, C) of ones and zeros is given to a loss as {name}.to_sparse()"
        ),
    )


@op_options
@dataclass(frozen=True)
class LabelSets:
    """X_p⁺ = candidates labelled p. The CPU's epilogues walk the sorted labels class by class."""

    labels: Tensor  # (B,) int64; or (B, K), distinct in a row: K labels of each candidate, of which some are ELSEWHERE
    sorted_labels: Tensor | None = None  # (B·K,) int64, ascending; None: not on the CPU
    order: Tensor | None = None  # (B·K,) int64, place in labels of each of sorted_labels; None exactly where that is
    elsewhere: bool = False  # whether some labels are ELSEWHERE; the range of all has been checked then
    weights: Tensor | None = None  # (B, K) compute dtype, of labels (B, K) in the anchor log-sum-exp; None: 1
    distinct: int | None = None  # number of distinct labels; None: not counted

    per_class = 0  # elements that a class brings into the cache

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are not None."""
        return tuple(tensor for tensor in (*self.in_both_orders, self.weights) if tensor is not None)

    @property
    def labels_each(self) -> int:
        """Labels of a candidate, K."""
        return self.labels.shape[1] if self.labels.dim() == 2 else 1

    @property
    def in_both_orders(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Labels, sorted labels and their order."""
        return self.labels, self.sorted_labels, self.order

    @classmethod
    def of(cls, labels: Tensor, elsewhere: bool = False, weights: Tensor | None = None) -> "LabelSets":
        """From ``labels`` int64; sorted on the CPU, stably, so that the same labels give the same sums."""
        on_cpu = labels.device.type == "cpu"
        ordered, order, distinct = _in_order(labels.flatten()) if on_cpu else (None, None, None)
        weights = None if weights is None else weights.contiguous()  # kernels read them by address
        return cls(labels.contiguous(), ordered, order, elsewhere, weights, distinct)

    def check_range(self, num_classes: int) -> None:
        """Every label is one of ``num_classes``, unless some are ELSEWHERE."""
        if not self.elsewhere:
            labels = self.labels if self.labels.dim() == 1 else self.labels.masked_fill(self.labels == ELSEWHERE, 0)
            check_label_range(labels, num_classes)

    def in_place(self, dtype: torch.dtype) -> bool:
        """Whether a native sweep reads the sets as they are stored."""
        return True

    def by_class(self) -> tuple[Tensor, Tensor]:
        """Sorted labels and their order; sorted now if the labels came from a GPU."""
        if self.sorted_labels is None or self.order is None:
            return torch.sort(self.labels.flatten(), stable=True)
        return self.sorted_labels, self.order

    def count(self, present: Tensor | None, dtype: torch.dtype) -> Tensor | int:
        """Distinct labels of the candidates ``present`` (B,) bool (None: all), an int or () of a floating type, ≥ 1."""
        several = self.labels.dim() == 2
        if present is None and not several and self.distinct is not None:
            return self.distinct
        if present is None:
            ordered = self.by_class()[0]
        else:
            present = present[:, None] if several else present
            ordered = torch.sort(torch.where(present, self.labels, ELSEWHERE).flatten())[0]
        # In a circle: a compiled graph takes slices of B − 1 labels for longer than one, and refuses two samples.
        count = (ordered != ordered.roll(1)).sum(dtype=dtype).clamp(min=1)
        if present is None and not several:
            return count
        return (count - (ordered < 0).any().to(dtype)).clamp(min=1)


def _in_order(labels: Tensor) -> tuple[Tensor, Tensor, int | None]:
    """Labels (n,) of the CPU sorted stably, the place of each, and the number of distinct ones where it is known."""
    count = labels.numel()
    if module.library is None or in_registry(labels) or not 0 < count <= _FEW:
        return (*torch.sort(labels, stable=True), None)
    labels = labels.contiguous()
    ordered, order = torch.empty_like(labels), torch.empty_like(labels)
    distinct = module.library.sort_labels(labels.data_ptr(), count, ordered.data_ptr(), order.data_ptr())
    return ordered, order, distinct
