"""How many anchors have a candidate on either side: the divisors |P⁺| and |P⁻|, on the device, without a host sync."""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import without_autocast
from robustdml_ops.engine.chunk_sizes import chunk_rows
from robustdml_ops.engine.label_sets import ELSEWHERE, LabelSets
from robustdml_ops.ops.anchor.problem import ConfidenceSets


class ConfidenceCounts(NamedTuple):
    """Results of one pass over the confidences."""

    positive: Tensor  # () int64: anchors with a candidate above the threshold
    negative: Tensor  # () int64: anchors with a candidate at or below it
    lowest: Tensor  # (): smallest confidence, NaN if there is one
    highest: Tensor  # ()


def count_labels(sets: LabelSets, present: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Distinct labels among the candidates ``present`` (B,) bool (None: all), () of a floating type, at least 1."""
    several = sets.labels.dim() == 2
    if present is None:
        ordered = sets.by_class()[0]
    else:
        present = present[:, None] if several else present
        ordered = torch.sort(torch.where(present, sets.labels, ELSEWHERE).flatten())[0]
    changes = (ordered[1:] != ordered[:-1]).sum(dtype=dtype)
    if present is None and not several:
        return changes + 1
    return (changes + (ordered[:1] >= 0).sum()).clamp(min=1)


def count_confidences(
    sets: ConfidenceSets, num_classes: int, present: Tensor | None, dtype: torch.dtype
) -> ConfidenceCounts:
    """Anchors with a candidate on either side of the threshold, counting candidates ``present`` (B,) (None: all)."""
    B, device = len(sets.tensors[0]), sets.tensors[0].device
    if num_classes == 0:
        none, number = torch.full((), torch.inf, dtype=dtype, device=device), torch.zeros((), dtype=torch.int64)
        return ConfidenceCounts(number.to(device), number.to(device), none, -none)
    lowest = torch.full((num_classes,), torch.inf, dtype=dtype, device=device)
    highest = -lowest
    rows = chunk_rows(num_classes, B + sets.per_class, device, 0 if present is None else 2 * B)
    # One memory for the logits of all chunks: the allocator would keep several.
    logits = torch.empty(min(rows, num_classes), B, dtype=dtype, device=device) if sets.are_logits else None
    for first in range(0, num_classes if B else 0, rows):
        last = min(num_classes, first + rows)
        with without_autocast(device):
            values = sets.values(first, last, dtype, None if logits is None else logits[: last - first])
        low, high = values, values
        if present is not None:
            low, high = values.masked_fill(~present, torch.inf), values.masked_fill(~present, -torch.inf)
        # Two passes of the vectorised reductions take a quarter of the time of torch.aminmax.
        torch.amin(low, 1, out=lowest[first:last])
        torch.amax(high, 1, out=highest[first:last])
    if sets.are_logits:
        lowest, highest = lowest.sigmoid(), highest.sigmoid()
    positive, negative = highest > sets.threshold, lowest <= sets.threshold
    if present is not None:
        # A logit of ±inf from an absent candidate has become a confidence of 0 or 1.
        positive, negative = positive & present.any(), negative & present.any()
    return ConfidenceCounts(positive.sum(), negative.sum(), lowest.min(), highest.max())
