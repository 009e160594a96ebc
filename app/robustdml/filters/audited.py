"""A filter that judges once, before the first step, by the features as they are then."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robustdml.audit.features import principal_rows
from robustdml.audit.rounds import judge
from robustdml.data import Rows
from robustdml.filters.filter import KEPT, Judged
from robustdml.world import World

QUALITY = "label_quality"
# A label is kept unless it is more likely wrong than right.
LEAST_QUALITY = 0.5


class AuditFilter(nn.Module):
    """The probabilities of `robustdml.audit` by the features before training, used for the whole run."""

    observed = (QUALITY, KEPT)
    bank = None
    quality: Tensor

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.register_buffer("quality", torch.ones(num_samples))

    def shard(self, world: World) -> None:
        """There is nothing to divide: each process has the whole verdict."""

    def fit(self, quality: Tensor) -> None:
        """Take over the verdict."""
        self.quality.copy_(quality)

    def start_epoch(self, epoch: int) -> None:
        """Nothing changes from epoch to epoch."""

    def judge(self, embeddings: Tensor, rows: Rows, proxies: Tensor | None) -> Judged:
        """Say who takes part."""
        quality = self.quality[torch.from_numpy(rows).to(self.quality.device)]
        keep = quality >= LEAST_QUALITY
        return Judged(keep, keep, None, {QUALITY: quality, KEPT: keep})

    def remember(self, embeddings: Tensor, rows: Rows, keep: Tensor) -> None:
        """There is no memory."""

    def record(self) -> dict[str, float]:
        """Say nothing of the epoch."""
        return {}


@torch.no_grad()
def label_quality(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Tensor:
    """Judge every label by `robustdml.audit.rounds.judge`."""
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        return torch.ones(len(labels))
    return judge(principal_rows(features), torch.from_numpy(numbers.astype(np.int64)), len(classes)).posterior[:, 0]
