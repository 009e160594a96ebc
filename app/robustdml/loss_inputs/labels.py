"""Labels as an input of a loss."""

import torch
from torch import Tensor

from robustdml.data import Rows
from robustdml.loss_inputs.base import LossInput, Training


class Labels(LossInput):
    """The labels, wrong ones among them."""

    of_one_process = False

    def __init__(self, training: Training) -> None:
        self._labels, self._device = torch.from_numpy(training.labels), training.device

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        """Labels of a batch."""
        return {"labels": self._labels[torch.from_numpy(rows)].to(self._device)}
