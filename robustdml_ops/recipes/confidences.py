"""Phase one of Smooth Proxy-Anchor: a confidence head over frozen features, and what the second phase asks of it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustdml_ops.recipes.config import TrainingConfig
from robustdml_ops.recipes.models import as_tensor
from robustdml_ops.recipes.progress import OnProgress
from robustdml_ops.robust import ConfidenceHead


class Confidences:
    """A head and the features it reads, sample by sample.

    Parameters
    ----------
    features : ndarray
        Frozen features of the training split, float32, (N, F).
    num_classes : int
        C.
    device : torch.device
        Where the head lives.
    """

    def __init__(self, features: NDArray[np.float32], num_classes: int, device: torch.device) -> None:
        self.head = ConfidenceHead(features.shape[1], num_classes).to(device)
        self._features, self._device = features, device

    def fit(self, labels: NDArray[np.int64], config: TrainingConfig, on_progress: OnProgress) -> None:
        """Learn from the noisy labels, and freeze.

        Parameters
        ----------
        labels : ndarray
            Noisy labels, (N,).
        config : TrainingConfig
            Epochs, learning rate, batch size and seed.
        on_progress : callable
            Told of every epoch.
        """
        self.head.fit(
            torch.from_numpy(self._features),
            torch.from_numpy(labels),
            epochs=config.confidence_epochs,
            batch_size=config.batch_size,
            learning_rate=config.confidence_learning_rate,
            seed=config.seed,
            on_epoch=lambda epoch, _: on_progress("phase one", epoch, config.confidence_epochs),
        )

    def factors(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """Confidences of some samples as the loss takes them, without the (B, C) matrix.

        Parameters
        ----------
        rows : ndarray
            Sample numbers, (B,).

        Returns
        -------
        tuple of Tensor
            See `ConfidenceHead.factors`.
        """
        return self.head.factors(as_tensor(self._features[rows], self._device))

    @torch.no_grad()
    def judge(
        self, given: NDArray[np.int64], true: NDArray[np.int64], batch_size: int = 256
    ) -> tuple[NDArray[np.float32], float]:
        """Hold the confidences against the truth, (batch_size, C) at a time.

        Parameters
        ----------
        given, true : ndarray
            Noisy and true labels, (N,).
        batch_size : int
            Samples at a time.

        Returns
        -------
        confidences : ndarray
            Confidence of each given label, float32, (N,).
        accuracy : float
            Share of the samples whose most confident class is the true one.
        """
        confidences, right = np.empty(len(true), dtype=np.float32), 0
        for start in range(0, len(true), batch_size):
            rows = np.arange(start, min(start + batch_size, len(true)))
            of_classes = self.head(as_tensor(self._features[rows], self._device)).float().cpu().numpy()
            confidences[rows] = of_classes[np.arange(len(rows)), given[rows]]
            right += int((of_classes.argmax(axis=1) == true[rows]).sum())
        return confidences, right / len(true)
