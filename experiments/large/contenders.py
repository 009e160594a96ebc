"""Who trains: the same loop with a loss of ours, with the same loss of the peer, and with a filter before ours."""

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
    """One way to train."""

    method: str  # A key of `robustdml.methods.METHODS`, whose loss, batches and learning rates are taken
    peer: Callable[[int, int], nn.Module] | None = None  # Makes the peer's loss, of C and D, in place of ours
    # Whether the filter of the method called robust stands before it, where the method has none of its own.
    filtered: bool = False

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.method}{'-filtered' if self.filtered else ''}{'-peer' if self.peer else ''}"

    @property
    def whose(self) -> str:
        """Of which library the loss is."""
        return PEER if self.peer else OURS

    @property
    def title(self) -> str:
        """What tables call it."""
        return f"{METHODS[self.method].title}{', filter' if self.filtered else ''}"

    def config(self, epochs: int, embedding_size: int) -> TrainingConfig:
        """Settings of its run."""
        asked = FilterOptions()
        if self.filtered or self.method == "robust":
            asked = replace(METHODS["robust"].filter, memory_dtype="bfloat16", on_trial=False)
        return TrainingConfig(method=self.method, epochs=epochs, embedding_size=embedding_size, filter=asked)

    def make_method(self) -> Method:
        """Make the method for the loop: with our loss, or with the peer's loss at equal initial values."""
        method, peer = METHODS[self.method], self.peer
        if peer is None:
            return method

        def make_loss(options: OptionSet, num_classes: int, embedding_size: int) -> nn.Module:
            # Ours first: making one draws random numbers, and both are to start from the same.
            ours = method.make_loss(options, num_classes, embedding_size)
            theirs = peer(num_classes, embedding_size)
            theirs.load_state_dict(ours.state_dict())
            return theirs

        return replace(method, make_loss=make_loss)


# With the settings that our methods have by default.
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
