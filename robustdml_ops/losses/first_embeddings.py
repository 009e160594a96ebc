"""Rows of a class matrix that take the first embeddings of their class, without waiting for a GPU."""

import torch
from torch import Tensor

from robustdml_ops.engine.rows.backends import normalized


def take_first(matrix: Tensor, taken: Tensor, X: Tensor, labels: Tensor, most: int) -> None:
    """Let classes take their first ``most`` embeddings, in the order of the batch, in place.

    matrix (C·H, D), a view; taken (C,) int32, embeddings that each class has taken; X (B, D) unit rows; labels (B,)
    int64, negative: a sample that takes no part. Empty centres are filled first; then the nearest one moves.
    """
    if not len(labels):
        return
    C, centers = len(taken), len(matrix) // len(taken) if len(taken) else 1
    if not C:
        return
    # All samples of a class write what the one whose turn it is brings: so equal places get equal values, and nothing
    # depends on how many samples take part. Absent ones come last, and do as the first sample does.
    keys, order = torch.sort(torch.where(labels < 0, C, labels), stable=True)
    first, end = torch.searchsorted(keys, keys), torch.searchsorted(keys, keys, right=True)
    present = keys < C
    places = torch.arange(len(keys), device=keys.device)
    follows = torch.where(present, places, 0)
    classes = keys.clamp(max=C - 1)[follows]
    first, end, present = first[follows], end[follows], present[:1].expand_as(present)
    for turn in range(min(most, len(labels))):
        number = taken[classes].long()
        takes = present & (first + turn < end) & (number < most)
        x = X[order[torch.minimum(first + turn, end - 1)]]
        takes = takes & x.any(1)
        rows = classes
        if centers > 1:
            rows = classes[:, None] * centers + torch.arange(centers, device=classes.device)
            cosines = torch.einsum(
                "bhd,bd->bh", normalized(matrix[rows.flatten()].float(), X.dtype, "eager").view(*rows.shape, -1), x
            )
            rows = rows.gather(1, torch.where(number < centers, number, cosines.argmax(1))[:, None]).squeeze(1)
        old = matrix[rows]
        share = 1 / (2 + number - centers).clamp(min=1).to(X.dtype)
        mean = torch.lerp(old.to(X.dtype), x, share[:, None])
        length = torch.linalg.vector_norm(mean, dim=1, keepdim=True)
        takes = takes & (length[:, 0] > 0)
        matrix[rows] = torch.where(takes[:, None], (mean / length).to(matrix.dtype), old)
        taken[classes] = torch.where(takes, number + 1, number).to(taken.dtype)
