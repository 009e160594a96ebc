"""Negatives of which some are of the classes nearest to those of the batch, by an index of the proxies.

The index puts each proxy into the cell of the nearest of √C random ones, and is made anew every `REFRESHED` steps.
"""

import torch
from torch import Tensor

from robustdml_ops.losses import NormalizedSoftmaxLoss
from robustdml_ops.losses.sampling import Drawn, Negatives
from robustdml_ops.ops import nearest

NEAR = 0.5  # of the classes drawn
REFRESHED = 100


class NearNegatives(Negatives):
    """Draws one part of the classes at random, the other from the cells of the batch's classes; logits as they are."""

    def __init__(self, loss: NormalizedSoftmaxLoss) -> None:
        super().__init__(loss.negative_share * (1 - NEAR))
        self._near = round(loss.negative_share * NEAR * loss.num_classes)
        self._proxies = loss.W.detach().T
        self._steps = 0

    def draw(self, labels: Tensor, num_classes: int, here: tuple[int, int] | None = None) -> Drawn:
        """Draw the classes of the next step of one process; labels (B,)."""
        if self._steps % REFRESHED == 0:
            self._make_index()
        self._steps += 1
        cells = self._cells[labels.unique()]
        which = torch.randint(len(cells), (self._near,))
        first, size = self._first[cells[which]], self._sizes[cells[which]]
        near = self._order[first + (torch.rand(self._near) * size).long()]
        classes = torch.cat([super().draw(labels, num_classes).classes, near]).unique()
        places = torch.arange(len(classes))
        return Drawn(classes, torch.searchsorted(classes, labels), places, len(classes), 1.0)

    def _make_index(self) -> None:
        P = self._proxies
        count = round(len(P) ** 0.5)
        self._cells = nearest(P, P[torch.randperm(len(P))[:count]], 1).indices[:, 0]
        self._order, self._sizes = self._cells.argsort(), torch.bincount(self._cells, minlength=count)
        self._first = self._sizes.cumsum(0) - self._sizes
