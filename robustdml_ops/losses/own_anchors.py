"""Pairs of the batch of all processes, of which each has those of its own samples as anchors."""

import torch
from torch import Tensor


def own_first(rows: Tensor, own: slice) -> Tensor:
    """Rows of all samples, own ones first: candidate i is then anchor i, as far as there are anchors."""
    return torch.cat([rows[own], rows[: own.start], rows[own.stop :]])
