"""Which training labels are believed, by the features before training."""

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Mask
from robustdml.filters.filter import LEAST_QUALITY
from robustdml.filters.label_quality import MOST_JUDGED, label_quality
from robustdml.networks.preparation import Prepared
from robustdml.world import World


class Beliefs:
    """Judges the training labels once, when somebody first asks; the first process judges for all."""

    def __init__(self, prepared: Prepared, device: torch.device, world: World) -> None:
        self._prepared, self._device, self._world = prepared, device, world
        self.quality: Tensor | None = None  # Probability that each label is right, (N,); None before it is judged

    def judge(self) -> Tensor:
        """Probability that each label is right, (N,)."""
        if self.quality is None:
            labels = self._prepared.data.train.labels
            found = torch.full((len(labels),), torch.nan)
            if self._world.leads:
                found = label_quality(self._prepared.frozen_features(), labels)
            self.quality = self._world.merged(found.to(self._device)).cpu()
        return self.quality

    def believed(self) -> Mask:
        """Say which labels are believed, (N,); all where none would be, or judging them would take long."""
        train = self._prepared.data.train
        if self.quality is None and len(train) * train.num_classes > MOST_JUDGED:
            return np.ones(len(train), dtype=bool)
        keep = (self.judge() >= LEAST_QUALITY).numpy()
        return keep if keep.any() else ~keep
