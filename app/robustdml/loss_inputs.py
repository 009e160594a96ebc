"""Arguments of the losses beside the embeddings, batch by batch."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from robustdml.arrays import Rows, Singles, blocks
from robustdml.config import TrainingConfig
from robustdml.errors import UsageError
from robustdml.methods.classes import SmoothOptions
from robustdml.methods.method import arguments_of
from robustdml.methods.pairs import MemoryContrastiveOptions, SelfPacedOptions
from robustdml.networks.models import as_tensor
from robustdml.networks.preparation import Prepared
from robustdml.progress import OnProgress
from robustdml.world import World
from robustdml_ops.robust import BalancedSelfPaced, ConfidenceHead, MemoryBank

BLOCK = 256
# The name of the scores of `Margins`.
MARGIN = "margin"


class Training(NamedTuple):
    """What a run trains with, as the inputs of its loss see it."""

    config: TrainingConfig
    prepared: Prepared
    embedding_size: int
    device: torch.device
    bank: MemoryBank | None  # The memory of the filter
    world: World


class LossInput:
    """An input of a loss that may learn between batches."""

    module: nn.Module | None = None  # State that goes into checkpoints
    observed: tuple[str, ...] = ()  # The names of what `observe` gives
    of_one_process = True

    def __init__(self, training: Training) -> None:
        self._training = training
        self._train = training.prepared.data.train

    def labels(self, rows: Rows) -> Tensor:
        """Labels of a batch."""
        return torch.from_numpy(self._train.labels[rows]).to(self._training.device)

    def fit(self, on_progress: OnProgress) -> None:
        """Called before the first epoch."""

    def loaded(self) -> None:
        """Called after the state of `module` was loaded."""

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        """Called before every epoch."""

    def arguments(self, rows: Rows) -> dict[str, Any]:
        """Keyword arguments of the loss for a batch."""
        raise NotImplementedError

    def observe(self, arguments: dict[str, Any]) -> dict[str, Tensor]:
        """Values to log for each sample of a batch."""
        return {}

    def after_step(self, rows: Rows, embeddings: Tensor, keep: Tensor | None) -> None:
        """Called after the optimiser's step."""

    def scores(self) -> dict[str, Singles]:
        """Values of each training sample, after the last epoch."""
        return {}

    def record(self) -> dict[str, float]:
        """Return numbers for the history, after an epoch."""
        return {}


class Labels(LossInput):
    """The labels, wrong ones among them."""

    of_one_process = False

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        return {"labels": self.labels(rows)}


class Confidences(LossInput):
    """A head and the features it reads, sample by sample."""

    module: ConfidenceHead

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._features = training.prepared.frozen_features().astype(np.float32, copy=False)
        self.module = ConfidenceHead(self._features.shape[1], self._train.num_classes).to(training.device)

    def fit(self, on_progress: OnProgress) -> None:
        config = self._training.config
        smooth = config.options[SmoothOptions]
        self.module.fit(
            torch.from_numpy(self._features),
            torch.from_numpy(self._train.labels),
            epochs=smooth.epochs,
            batch_size=config.batch_size,
            learning_rate=smooth.learning_rate,
            seed=config.seed,
            on_epoch=lambda epoch, _: on_progress("phase one", epoch, smooth.epochs),
        )

    def loaded(self) -> None:
        self.module.freeze()

    def arguments(self, rows: Rows) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
        # As the loss takes them, without the (B, C) matrix.
        return {"confidences": self.module.factors(as_tensor(self._features[rows], self._training.device))}

    def scores(self) -> dict[str, Singles]:
        given, confidences = self._train.labels, []
        for rows in blocks(len(given), BLOCK):
            with torch.no_grad():
                of_classes = self.module(as_tensor(self._features[rows], self._training.device))
            confidences.append(np.take_along_axis(of_classes.float().cpu().numpy(), given[rows, None], 1)[:, 0])
        return {"confidence": np.concatenate(confidences)}


class Memory(LossInput):
    """The memory of the filter where it has one, otherwise one of its own."""

    of_one_process = False  # each has some of the slots

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        if training.bank is not None:
            self._bank = training.bank
            return
        asked = training.config.options[MemoryContrastiveOptions].memory_size
        size = len(self._train.labels) if asked is None else asked
        bank = MemoryBank(self._train.num_classes, training.embedding_size, size).to(training.device)
        self.module = self._bank = training.world.shard(bank)

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        return {"ref_emb": self._bank.features, "ref_labels": self._bank.labels}

    def after_step(self, rows: Rows, embeddings: Tensor, keep: Tensor | None) -> None:
        # A filter fills its own memory itself.
        if self.module is not None:
            labels = self.labels(rows)
            self._bank.enqueue(functional.normalize(embeddings.float()), labels, keep=keep)


class SelfPacedWeights(LossInput):
    """One weight per training sample, solved for before each epoch over the embeddings of all of them."""

    module: BalancedSelfPaced
    observed = ("weight",)

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        settings = arguments_of(BalancedSelfPaced, training.config.options, (SelfPacedOptions,))
        try:
            labels, seed = torch.from_numpy(self._train.labels), training.config.seed
            self.module = BalancedSelfPaced(labels, **settings, seed=seed).to(training.device)
        except ValueError as error:
            raise UsageError(f"method bspml: {error}") from error
        self._warmup = training.config.options[SelfPacedOptions].warmup

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        if epoch >= self._warmup:
            self.module.update(embed().to(self._training.device))

    def arguments(self, rows: Rows) -> dict[str, Tensor]:
        return {"sample_weights": self.module.weights(torch.from_numpy(rows).to(self._training.device))}

    def observe(self, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"weight": arguments["sample_weights"]}

    def record(self) -> dict[str, float]:
        # Mean and standard deviation of the classes' average weights, Eq. 14 of the paper.
        return {"maw": self.module.maw, "sdaw": self.module.sdaw, "age": float(self.module.lam)}


class Margins(LossInput):
    """No argument of the loss: margins of the labels, averaged over the epochs, for an audit to judge by.

    The margin of a sample is its cosine with the mean of its class, itself left out, minus the largest cosine with the
    mean of another class. Labels that are learnt early and keep their margin are mostly right: arXiv 2510.16211.
    """

    module: "MarginSums"

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.module = MarginSums(len(self._train.labels)).to(training.device)

    def start_epoch(self, epoch: int, embed: Callable[[], Tensor]) -> None:
        labels = torch.from_numpy(self._train.labels)
        self.module.total += margins_of(embed(), labels, self._train.num_classes).to(self.module.total)
        self.module.epochs += 1

    def arguments(self, rows: Rows) -> dict[str, Any]:
        return {}

    def scores(self) -> dict[str, Singles]:
        mean: Singles = (self.module.total / self.module.epochs).cpu().numpy()
        return {MARGIN: mean}


class MarginSums(nn.Module):
    """Sums of margins over the epochs, and their number."""

    total: Tensor
    epochs: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(count))
        self.register_buffer("epochs", torch.zeros(()))


def margins_of(embeddings: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Margins (N,) of labels (N,) by embeddings (N, D); the cosine of a sample that is alone in its class is 0."""
    X = functional.normalize(embeddings.float())
    sums = torch.zeros(num_classes, X.shape[1]).index_add_(0, labels, X)
    means, own = functional.normalize(sums), functional.normalize(sums[labels] - X)
    out = torch.empty(len(X))
    for rows in blocks(len(X), BLOCK):
        of_others = (X[rows] @ means.T).scatter_(1, labels[rows, None], -1.0).amax(1)
        out[rows] = (X[rows] * own[rows]).sum(1) - of_others
    return out


# By the name that `Method.inputs` has for it.
LOSS_INPUTS: dict[str, Callable[[Training], LossInput]] = {
    "labels": Labels,
    "confidences": Confidences,
    "memory": Memory,
    "self_paced_weights": SelfPacedWeights,
    "margins": Margins,
}
