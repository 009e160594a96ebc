"""A rival: PRISM and MCL, and positives for the samples that PRISM rejects, from subgroups of similar samples (SGPS).

Source: Yu, Xu, Jiang, Sun and Huang, "Enhancing Sample Utilization in Noise-Robust Deep Metric Learning With
Subgroup-Based Positive-Pair Selection", IEEE TIP 33, 2024, with the losses and settings of the authors' public code.
Their server of subgroups is not public. Here a subgroup is what is nearest when an epoch begins, from its cosine on:
among the samples of the label, and among all. Supports are embeddings of that time; theirs are embedded with the batch.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robustdml.data import Rows
from robustdml.loss_inputs import LOSS_INPUTS, LossInput, Training
from robustdml.methods import METHODS
from robustdml.networks.models import unit_length
from robustdml.options import OptionSet
from robustdml_ops.ops import nearest

# Neighbours that a subgroup is taken from, the least cosine within it, and supports drawn from either subgroup.
NEIGHBOURS, LEAST, SUPPORTS = 20, 0.6, 2
SCALE, MARGIN = 50.0, 0.1


class Drawn(NamedTuple):
    """Inputs of `rejected_loss` for a batch."""

    supports: Tensor  # (B, 4, D), unit rows
    others: Tensor  # Negatives: the supports of the batch and the kept samples of the memory, (M, D)
    negative: Tensor  # Which of them are, bool, (B, M)


class Subgroups(LossInput):
    """Supports of each sample of a batch, and its negatives."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._labels = torch.from_numpy(self._train.labels)
        self._kept = torch.zeros(len(self._labels), dtype=torch.bool)

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        self._rows = unit_length(embed())
        self._groups, self._alike = subgroups(self._rows, self._labels)

    def arguments(self, rows: Rows) -> dict[str, Drawn]:
        batch = torch.from_numpy(rows)
        groups, alike = self._groups[batch], self._alike[:, batch]
        # A sample without a subgroup is its own support.
        chances = torch.nn.functional.pad(alike.float(), (0, 1), value=1e-6)
        places = [torch.multinomial(of_kind, SUPPORTS, replacement=True) for of_kind in chances]
        supports = torch.cat([groups, batch[:, None]], 1).gather(1, torch.cat(places, 1))
        found = torch.cat([supports.flatten(), self._kept.nonzero().flatten()])
        negative = self._labels[batch, None] != self._labels[found]
        # A sample alike is no negative, whatever its label.
        for members, inside in zip(groups.T, alike[1].T, strict=True):
            negative &= ~((members[:, None] == found) & inside[:, None])
        device = self._training.device
        drawn = Drawn(self._rows[supports].to(device), self._rows[found].to(device), negative.to(device))
        return {"subgroups": drawn}

    def after_step(self, rows: Rows, embeddings: Tensor, keep: Tensor | None) -> None:
        self._kept[torch.from_numpy(rows)] = True if keep is None else keep.cpu()


def subgroups(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Find the neighbours (N, n) of unit rows, and which of them are in the subgroup by label and in that by all."""
    found = nearest(rows, rows, min(NEIGHBOURS, len(rows) - 1), exclude_self=True)
    alike = found.values >= LEAST
    return found.indices, torch.stack([alike & (labels[found.indices] == labels[:, None]), alike])


def rejected_loss(embeddings: Tensor, drawn: Drawn) -> Tensor:
    """Softmax loss of each sample against its prototype, (B,): the mean of the supports, central ones more."""
    rows = unit_length(embeddings)
    likeness = (drawn.supports @ drawn.supports.mT).sum(1) - 1
    weights = (likeness / drawn.supports.shape[1]).softmax(1)
    prototypes = unit_length((weights[:, :, None] * drawn.supports).sum(1))
    positive = SCALE * ((rows * prototypes).sum(1) - MARGIN)
    negative = (SCALE * rows @ drawn.others.T).masked_fill(~drawn.negative, -torch.inf)
    return torch.cat([positive[:, None], negative], 1).logsumexp(1) - positive


class SubgroupPairLoss(nn.Module):
    """MCL of what is kept, and `rejected_loss` of what is not."""

    def __init__(self, kept: nn.Module) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, embeddings: Tensor, subgroups: Drawn, **arguments: Any) -> Tensor:
        """Add both losses."""
        value: Tensor = self.kept(embeddings, **arguments)
        rejected = arguments.get("sample_weights", torch.ones(len(embeddings))) == 0
        return value + rejected_loss(embeddings, subgroups)[rejected].mean() if rejected.any() else value


def _make_loss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
    return SubgroupPairLoss(METHODS["mcl"].make_loss(options, num_classes, embedding_size))


LOSS_INPUTS["subgroups"] = Subgroups
METHODS["sgps"] = replace(
    METHODS["mcl"],
    title="SGPS",
    make_loss=_make_loss,
    options=(),
    inputs=("labels", "memory", "subgroups"),
)
