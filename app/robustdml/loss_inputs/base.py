"""What an input of a loss is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robustdml.config import TrainingConfig
from robustdml.data import Rows
from robustdml.networks.preparation import Prepared
from robustdml.progress import OnProgress
from robustdml.world import ALONE, World
from robustdml_ops.robust import MemoryBank


@dataclass(frozen=True)
class Training:
    """What a run trains with, as the inputs of its loss see it."""

    config: TrainingConfig  # Settings
    prepared: Prepared  # Data and the untouched backbone's features
    embedding_size: int  # D
    device: torch.device  # Where it trains
    bank: MemoryBank | None  # The memory of the filter, where it has one
    world: World = ALONE  # The processes that train together

    @property
    def labels(self) -> NDArray[np.int64]:
        """Labels to train with, (N,)."""
        return self.prepared.data.train.labels

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return self.prepared.data.train.num_classes


class LossInput:
    """An input of a loss; what it learns, it learns between batches."""

    module: nn.Module | None = None  # State that goes into checkpoints
    observed: tuple[str, ...] = ()  # The names of what `observe` gives
    of_one_process = True

    def fit(self, report: OnProgress) -> None:
        """Do what comes before the first epoch."""

    def loaded(self) -> None:
        """Do what is due after the state of `module` was loaded."""

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        """Do what comes before every epoch."""

    def arguments(self, rows: Rows) -> dict[str, Any]:
        """Give what the loss takes for a batch."""
        raise NotImplementedError

    def observe(self, arguments: dict[str, Any]) -> dict[str, Tensor]:
        """Give what is to be logged of each sample of a batch."""
        return {}

    def after_step(self, rows: Rows, embeddings: Tensor, keep: Tensor | None) -> None:
        """Do what comes after the optimiser's step."""

    def scores(self) -> dict[str, NDArray[np.float32]]:
        """Say what it holds of each training sample, after the last epoch."""
        return {}

    def record(self) -> dict[str, float]:
        """Return numbers for the history, after an epoch."""
        return {}

    def summary(self) -> dict[str, float]:
        """Return numbers for the summary, after the last epoch."""
        return {}
