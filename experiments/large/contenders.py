"""Contenders of the large demo: one loop with our loss, with the peer's, and with ours behind a filter."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pytorch_metric_learning import losses as library
from torch import nn

from robustdml.config import TrainingConfig
from robustdml.filters.options import FilterOptions
from robustdml.methods import METHODS, Method
from robustdml.options import OptionSet

OURS, PEER = "robustdml_ops", "pytorch-metric-learning"


@dataclass(frozen=True)
class Contender:
    """A way to train."""

    method: str  # A key of `robustdml.methods.METHODS`, whose loss, batches and learning rates are taken
    peer: Callable[[int, int], nn.Module] | None = None  # Makes the peer's loss from C and D
    # Whether robust's filter is added to a method without a filter.
    filtered: bool = False

    @property
    def name(self) -> str:
        """Name of its files."""
        return f"{self.method}{'-filtered' if self.filtered else ''}{'-peer' if self.peer else ''}"

    @property
    def whose(self) -> str:
        """Library of the loss."""
        return PEER if self.peer else OURS

    @property
    def title(self) -> str:
        """Title in tables."""
        return f"{METHODS[self.method].title}{', filter' if self.filtered else ''}"

    def config(self, epochs: int, embedding_size: int) -> TrainingConfig:
        """Settings of its run."""
        asked = FilterOptions()
        if self.filtered or self.method == "robust":
            asked = replace(METHODS["robust"].filter, memory_dtype="bfloat16", on_trial=False)
        return TrainingConfig(method=self.method, epochs=epochs, embedding_size=embedding_size, filter=asked)

    def make_method(self) -> Method:
        """The method with our loss, or with the peer's loss at the same initial values."""
        method, peer = METHODS[self.method], self.peer
        if peer is None:
            return method

        def make_loss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
            # Ours first, so that both runs draw the same random numbers.
            ours = method.make_loss(options, num_classes, embedding_size)
            theirs = peer(num_classes, embedding_size)
            theirs.load_state_dict(ours.state_dict())
            return theirs

        return replace(method, make_loss=make_loss)


# With the default settings of our methods.
CONTENDERS = (
    Contender("proxy-anchor", peer=lambda classes, size: library.ProxyAnchorLoss(classes, size)),
    Contender("proxy-anchor"),
    Contender("proxy-anchor", filtered=True),
    Contender("normalized-softmax", peer=lambda classes, size: library.NormalizedSoftmaxLoss(classes, size)),
    Contender("normalized-softmax"),
    Contender("normalized-softmax", filtered=True),
    Contender("robust"),
)
QUICK_CONTENDERS = tuple(contender for contender in CONTENDERS if contender.method in ("proxy-anchor", "robust"))
BY_NAME = {contender.name: contender for contender in CONTENDERS}
