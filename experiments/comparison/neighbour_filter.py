"""A rival: the contrastive loss on samples whose nearest neighbours mostly have their label.

Source: Galanakis, Zabulis and Argyros, "Nearest Neighbor-Based Data Denoising for Deep Metric Learning", VISAPP 2024,
with the settings of the authors' public code: of 20 neighbours in the memory of all embeddings, the given label has at
least half as many as the commonest label. Here all samples are judged when an epoch begins, not batch by batch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robustdml.filters.filter import KEPT
from robustdml.loss_inputs import LOSS_INPUTS, LossInput, Training
from robustdml.methods import METHODS
from robustdml.networks.models import unit_length
from robustdml_ops.ops import nearest

NEIGHBOURS = 20
LEAST_SHARE = 0.5


class NeighbourVerdicts(LossInput):
    """A weight of 1 or 0 for each training sample."""

    observed = (KEPT,)

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._kept = torch.ones(len(self._train))

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        self._kept = neighbours_agree(embed(), torch.from_numpy(self._train.labels)).float()

    def arguments(self, rows: Any) -> dict[str, Tensor]:
        return {"sample_weights": self._kept[torch.from_numpy(rows)].to(self._training.device)}

    def observe(self, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
        return {KEPT: arguments["sample_weights"]}


def neighbours_agree(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Whether each sample (N, D) is kept, (N,); its own embedding is in the memory and counts.

    Examples
    --------
    >>> neighbours_agree(torch.tensor([[1.0, 0.0]] * 4), torch.tensor([0, 0, 0, 1])).tolist()
    [True, True, True, False]
    """
    rows = unit_length(embeddings)
    found = labels[nearest(rows, rows, min(NEIGHBOURS, len(rows))).indices]
    commonest = (found == found.mode(1, keepdim=True).values).sum(1)
    return (found == labels[:, None]).sum(1) >= LEAST_SHARE * commonest


LOSS_INPUTS["neighbour_verdicts"] = NeighbourVerdicts
METHODS["neighbour-filter"] = replace(
    METHODS["contrastive"], title="kNN filter", inputs=("labels", "neighbour_verdicts")
)
