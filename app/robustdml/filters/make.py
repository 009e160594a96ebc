"""The filter of a run by its settings."""

import numpy as np
from numpy.typing import NDArray

from robustdml.config import TrainingConfig
from robustdml.filters.audited import AuditFilter
from robustdml.filters.filter import Filter
from robustdml.filters.options import AUDIT, NO_FILTER

AnyFilter = Filter | AuditFilter


def make_filter(
    config: TrainingConfig,
    labels: NDArray[np.int64],
    num_classes: int,
    embedding_size: int,
    steps_per_epoch: int,
) -> AnyFilter | None:
    """Make the filter that the settings ask for."""
    kind = config.filter_options.kind
    if kind == NO_FILTER:
        return None
    if kind == AUDIT:
        return AuditFilter(len(labels))
    return Filter(config, labels, num_classes, embedding_size, steps_per_epoch)
