"""What an input of a loss is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.data import Rows
from robustdml_ops.recipes.networks.preparation import Prepared
from robustdml_ops.recipes.progress import OnProgress
from robustdml_ops.recipes.world import ALONE, World
from robustdml_ops.robust import MemoryBank


@dataclass(frozen=True)
class Training:
    """What a run trains with, as the inputs of its loss see it.

    Attributes
    ----------
    config : TrainingConfig
        Settings.
    prepared : Prepared
        Data and the untouched backbone's features.
    labels : ndarray
        Labels with their noise, int64, (N,).
    changed : ndarray
        Which labels are wrong, bool, (N,): to measure with, not to train with.
    embedding_size : int
        D.
    device : torch.device
        Where it trains.
    bank : MemoryBank or None
        The memory of the filter, where it has one.
    world : World
        The processes that train together.
    """

    config: TrainingConfig
    prepared: Prepared
    labels: NDArray[np.int64]
    changed: NDArray[np.bool_]
    embedding_size: int
    device: torch.device
    bank: MemoryBank | None
    world: World = ALONE

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return self.prepared.data.train.num_classes


class LossInput:
    """An input of a loss; what it learns, it learns between batches.

    Attributes
    ----------
    module : Module or None
        State that goes into checkpoints.
    observed : tuple of str
        The names of what `observe` gives.
    of_one_process : bool
        Whether it is made of all samples on one process; else several may train together.
    """

    module: nn.Module | None = None
    observed: tuple[str, ...] = ()
    of_one_process = True

    def fit(self, report: OnProgress) -> None:
        """Do what comes before the first epoch.

        Parameters
        ----------
        report : callable
            Told of progress.
        """

    def loaded(self) -> None:
        """Do what is due after the state of `module` was loaded."""

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        """Do what comes before every epoch.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.
        embed : callable
            Returns the embeddings of all training samples, in eval mode, (N, D); a pass over the data.
        """

    def arguments(self, rows: Rows) -> dict[str, Any]:
        """Give what the loss takes for a batch.

        Parameters
        ----------
        rows : ndarray
            Sample numbers, (B,).

        Returns
        -------
        dict
            Values by the names of arguments.
        """
        raise NotImplementedError

    def observe(self, arguments: dict[str, Any]) -> dict[str, Tensor]:
        """Give what is to be logged of each sample of a batch.

        Parameters
        ----------
        arguments : dict
            What `arguments` gave for the batch.

        Returns
        -------
        dict
            (B,) by name.
        """
        return {}

    def after_step(self, rows: Rows, embeddings: Tensor, keep: Tensor | None) -> None:
        """Do what comes after the optimiser's step.

        Parameters
        ----------
        rows : ndarray
            Sample numbers of the batch, (B,).
        embeddings : Tensor
            Of the batch, as the loss got them, (B, D); detached.
        keep : Tensor or None
            Which of the samples the filter has let through, bool, (B,); None without a filter.
        """

    def scores(self) -> dict[str, NDArray[np.float32]]:
        """Say what it holds of each training sample, after the last epoch.

        Returns
        -------
        dict
            (N,) by name; empty where it judges no labels.
        """
        return {}

    def record(self) -> dict[str, float]:
        """Return numbers for the history, after an epoch."""
        return {}

    def summary(self) -> dict[str, float]:
        """Return numbers for the summary, after the last epoch."""
        return {}
