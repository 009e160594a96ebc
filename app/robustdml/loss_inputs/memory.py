"""A memory of past embeddings, as the candidates of a loss on pairs."""

import torch
from torch import Tensor
from torch.nn import functional

from robustdml.data import Rows
from robustdml.loss_inputs.base import LossInput, Training
from robustdml.methods.pairs import MemoryContrastiveOptions
from robustdml_ops.robust import MemoryBank


class Memory(LossInput):
    """The memory of the filter where it has one, otherwise one of its own."""

    of_one_process = False  # each has some of the slots

    def __init__(self, training: Training) -> None:
        self._labels, self._device = torch.from_numpy(training.labels), training.device
        if training.bank is not None:
            self._bank = training.bank
            return
        config, num_samples = training.config, len(training.labels)
        asked = config.options[MemoryContrastiveOptions].memory_size
        size = num_samples if asked is None else asked
        bank = MemoryBank(training.num_classes, training.embedding_size, size).to(training.device)
        self._bank = training.world.shard(bank)
        self.module = self._bank

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        """Rows of the memory, whatever the batch."""
        return {"ref_emb": self._bank.features, "ref_labels": self._bank.labels}

    def after_step(self, rows: Rows, embeddings: Tensor, keep: Tensor | None) -> None:
        """Remember what was kept, in a memory of its own: a filter fills its own memory itself."""
        if self.module is not None:
            labels = self._labels[torch.from_numpy(rows)].to(self._device)
            self._bank.enqueue(functional.normalize(embeddings.float()), labels, keep=keep)
