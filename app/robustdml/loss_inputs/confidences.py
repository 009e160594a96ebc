"""Phase one of Smooth Proxy-Anchor: a confidence head over frozen features, and what the second phase asks of it."""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustdml.data import Rows
from robustdml.loss_inputs.base import LossInput, Training
from robustdml.methods.anchors import SmoothOptions
from robustdml.networks.models import as_tensor
from robustdml.progress import OnProgress
from robustdml_ops.robust import ConfidenceHead

BLOCK = 256


class Confidences(LossInput):
    """A head and the features it reads, sample by sample."""

    module: ConfidenceHead

    def __init__(self, training: Training) -> None:
        self._features = training.prepared.frozen_features()
        self._training = training
        self.module = ConfidenceHead(self._features.shape[1], training.num_classes).to(training.device)

    def fit(self, report: OnProgress) -> None:
        """Learn from the noisy labels, and freeze."""
        config = self._training.config
        smooth = config.options[SmoothOptions]
        self.module.fit(
            torch.from_numpy(self._features),
            torch.from_numpy(self._training.labels),
            epochs=smooth.epochs,
            batch_size=config.batch_size,
            learning_rate=smooth.learning_rate,
            seed=config.seed,
            on_epoch=lambda epoch, _: report("phase one", epoch, smooth.epochs),
        )

    def loaded(self) -> None:
        """Freeze what was loaded: phase one is over."""
        self.module.freeze()

    def arguments(self, rows: Rows) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        """Confidences of some samples as the loss takes them, without the (B, C) matrix."""
        return {"confidences": self.module.factors(as_tensor(self._features[rows], self._training.device))}

    def scores(self) -> dict[str, NDArray[np.float32]]:
        """Confidence of the label given to each training sample."""
        return {"confidence": self._judgement[0]}

    def summary(self) -> dict[str, float]:
        """Share of the samples whose most confident class is the true one."""
        return {"confidence_accuracy": self._judgement[1]}

    @cached_property
    def _judgement(self) -> tuple[NDArray[np.float32], float]:
        """Confidences and accuracy, (BLOCK, C) at a time; only asked for when the head is frozen."""
        given, true = self._training.labels, self._training.prepared.data.train.reference_labels
        confidences, right = np.empty(len(true), dtype=np.float32), 0
        for start in range(0, len(true), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(true)))
            with torch.no_grad():
                of_classes = self.module(as_tensor(self._features[rows], self._training.device)).float().cpu().numpy()
            confidences[rows] = of_classes[np.arange(len(rows)), given[rows]]
            right += int((of_classes.argmax(axis=1) == true[rows]).sum())
        return confidences, right / len(true)
