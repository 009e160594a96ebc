"""Text embeddings as an input of a loss."""

import torch
from torch import Tensor

from robustdml_ops.recipes.data import Rows
from robustdml_ops.recipes.errors import UsageError
from robustdml_ops.recipes.loss_inputs.base import LossInput, Training
from robustdml_ops.recipes.loss_inputs.text_embeddings import name_by_looks


class LanguageGuidance(LossInput):
    """Embeddings of the names that the samples of Glyphs have by their looks.

    Parameters
    ----------
    training : Training
        Features of the pretrained backbone.

    Raises
    ------
    UsageError
        Other data, or another backbone.
    """

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
        """Embeddings of the names of a batch.

        Parameters
        ----------
        rows : ndarray
            Sample numbers, (B,).

        Returns
        -------
        dict
            ``guidance``: float32, (B, k, d).
        """
        return {"guidance": self._embeddings[self._names[torch.from_numpy(rows)].to(self._device)]}
