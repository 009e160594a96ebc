"""Labels as an input of a loss."""

import torch
from torch import Tensor

from robustdml_ops.recipes.data import Rows
from robustdml_ops.recipes.loss_inputs.base import LossInput, Training


class Labels(LossInput):
    """The labels, wrong ones among them.

    Parameters
    ----------
    training : Training
        Whose labels.
    """

    of_one_process = False

    def __init__(self, training: Training) -> None:
        self._labels, self._device = torch.from_numpy(training.labels), training.device

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        """Labels of a batch.

        Parameters
        ----------
        rows : ndarray
            Sample numbers, (B,).

        Returns
        -------
        dict
            ``labels``: int64, (B,).
        """
        return {"labels": self._labels[torch.from_numpy(rows)].to(self._device)}
