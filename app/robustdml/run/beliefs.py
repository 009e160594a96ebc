"""Which training labels are believed, by the features before training; the start that follows from them."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robustdml.arrays import Mask
from robustdml.config import WHITENED, TrainingConfig
from robustdml.filters.filter import LEAST_QUALITY
from robustdml.filters.label_quality import MOST_JUDGED, label_quality
from robustdml.methods import METHODS
from robustdml.networks.preparation import Prepared
from robustdml.networks.start import NARROWEST, Start, choose_start, make_start
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


def start_of(config: TrainingConfig, prepared: Prepared, beliefs: Beliefs, world: World, device: torch.device) -> Start:
    """Choose how the embedding layer starts, by the features and the labels that are believed."""
    features, labels = prepared.frozen_features(), prepared.data.train.labels
    if config.embedding_size is not None:
        start = make_start(features, config.embedding_size)
    else:
        # Of many classes a verdict by the features takes longer than their training.
        is_judged = features.shape[1] > NARROWEST and not METHODS[config.method].has_stages
        rows = np.flatnonzero(beliefs.believed()) if is_judged else None
        start = choose_start(features, labels, config.seed, rows)
        # All processes take the width of the first: last bits may differ.
        width = torch.tensor(float(start.width) if world.leads else torch.nan, device=device)
        start = replace(start, width=int(world.merged(width)))
    whiten = config.layer_start == WHITENED
    return start.whitened(features, labels, np.flatnonzero(beliefs.believed())) if whiten else start
