"""Negatives of which some are of the classes nearest to those of the batch, by an index of the proxies.

The index puts each proxy into the cell of the nearest of √C random ones, and is made anew every `REFRESHED` steps.
"""

from typing import Any

import torch

from robustdml_ops.losses import NormalizedSoftmaxLoss
from robustdml_ops.ops import nearest

NEAR = 0.5  # of the classes drawn
REFRESHED = 100


class NearNegatives:
    """Adds classes from the cells of the batch's classes to those that a loss draws at random; logits as they are."""

    def __init__(self, loss: NormalizedSoftmaxLoss) -> None:
        at_random = loss.negatives
        assert at_random is not None
        self._at_random = at_random.draw
        self._number = round(loss.negative_share * NEAR / (1 - NEAR) * loss.num_classes)
        self._proxies = loss.W.detach().T
        self._steps = 0

    def draw(self, labels: torch.Tensor, num_classes: int, here: tuple[int, int] | None = None) -> Any:
        """Draw the classes of the next step of one process; labels (B,)."""
        if self._steps % REFRESHED == 0:
            self._make_index()
        self._steps += 1
        cells = self._cells[labels.unique()]
        which = torch.randint(len(cells), (self._number,))
        first, size = self._first[cells[which]], self._sizes[cells[which]]
        near = self._order[first + (torch.rand(self._number) * size).long()]
        drawn = self._at_random(labels, num_classes, here)
        classes = torch.cat([drawn.classes, near]).unique()
        return drawn._replace(
            classes=classes,
            labels=torch.searchsorted(classes, labels),
            places=torch.arange(len(classes)),
            certain=len(classes),
            weight=1.0,
        )

    def _make_index(self) -> None:
        P = self._proxies
        count = round(len(P) ** 0.5)
        self._cells = nearest(P, P[torch.randperm(len(P))[:count]], 1).indices[:, 0]
        self._order, self._sizes = self._cells.argsort(), torch.bincount(self._cells, minlength=count)
        self._first = self._sizes.cumsum(0) - self._sizes
