"""Text embeddings as an input of a loss."""

import torch
from torch import Tensor

from robustdml.data import Rows
from robustdml.errors import UsageError
from robustdml.loss_inputs.base import LossInput, Training
from robustdml.loss_inputs.text_embeddings import name_by_looks


class LanguageGuidance(LossInput):
    """Embeddings of the names that the samples of Glyphs have by their looks."""

    of_one_process = False

    def __init__(self, training: Training) -> None:
        data, backbone = training.prepared.data, training.config.backbone
        if not data.name.startswith("glyphs") or backbone:
            raise UsageError(
                "language guidance needs text embeddings, which come with Glyphs and their own backbone alone, not "
                f"with {backbone or data.name}; use procsim.omega 0, or ProcSimLoss in a loop of your own"
            )
        guidance = name_by_looks(training.prepared.frozen_features())
        self._embeddings = torch.from_numpy(guidance.embeddings).to(training.device)
        self._names, self._device = torch.from_numpy(guidance.names), training.device

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        """Embeddings of the names of a batch."""
        return {"guidance": self._embeddings[self._names[torch.from_numpy(rows)].to(self._device)]}
