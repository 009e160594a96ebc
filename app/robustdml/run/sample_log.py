"""What a run saw of each training sample in the epoch: scores of a filter, confidences, weights."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from robustdml.arrays import Ints, Mask, Singles
from robustdml.filters.filter import KEPT

# Quantities that are low for labels held to be right. All others are high for them.
LOW_WHEN_RIGHT = frozenset({"detector_loss", "above_threshold"})


class SampleLog(nn.Module):
    """One number per quantity and training sample: its last of the epoch. ``state_dict`` holds all of it."""

    values: Tensor

    def __init__(self, names: Iterable[str], changed: Mask) -> None:
        super().__init__()
        self.names = tuple(names)
        self._changed = changed
        # NaN where a sample was in no batch.
        self.register_buffer("values", torch.full((len(self.names), len(changed)), torch.nan))

    def clear(self) -> None:
        """Begin an epoch."""
        self.values.fill_(torch.nan)

    def write(self, rows: Ints, quantities: Mapping[str, Tensor]) -> None:
        """Take down some quantities of a batch."""
        places = torch.from_numpy(rows).to(self.values.device)
        for name, value in quantities.items():
            self.values[self.names.index(name), places] = value.detach().to(self.values)

    def scores(self) -> dict[str, Singles]:
        """Give the quantities of the epoch."""
        return dict(zip(self.names, self.values.cpu().numpy(), strict=True))

    def record(self) -> dict[str, float]:
        """Hold the quantities against the truth."""
        record: dict[str, float] = {}
        for name, values in self.scores().items():
            if np.isnan(values).all():
                continue
            for which, mask in (("right", ~self._changed), ("wrong", self._changed)):
                seen = values[mask & ~np.isnan(values)]
                if len(seen):
                    record[f"{name}_{which}"] = float(seen.mean(dtype=np.float64))
            if name == KEPT:
                chosen = values == 1
                record["filter_kept"] = float(np.nanmean(values))
                if chosen.any() and self._changed.any():
                    record["filter_precision"] = float((~self._changed[chosen]).mean())
            elif (auc := clean_auc(name, values, self._changed)) is not None:
                record[f"{name}_auc"] = auc
        return record


def clean_auc(name: str, values: Singles, changed: Mask) -> float | None:
    """Area under the ROC curve of a quantity as a score of clean labels; None without labels of both kinds."""
    seen = ~np.isnan(values)
    if changed[seen].all() or not changed[seen].any():
        return None
    return float(roc_auc_score(~changed[seen], -values[seen] if name in LOW_WHEN_RIGHT else values[seen]))
