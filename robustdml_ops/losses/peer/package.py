"""What wrappers, trainers and miners of pytorch-metric-learning ask of a loss: its own base classes, where installed.

Where it is not installed, stand-ins hold their place: the losses run, and its arguments raise.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import nn
from typing_extensions import TypedDict

__all__ = [
    "INSTALLED",
    "PACKAGE",
    "ClassLossOptions",
    "LossOptions",
    "PeerBase",
    "PeerWeights",
    "WeightedLossOptions",
    "peer_distances",
    "peer_losses",
    "peer_reducers",
]

PACKAGE = "pytorch-metric-learning"


class LossOptions(TypedDict, total=False):
    """Keyword arguments of every loss: ours, and those of all of the peer's."""

    reduction: str
    backend: str | None
    ignore_index: int | None
    distance: Any
    reducer: Any
    embedding_regularizer: Any
    embedding_reg_weight: float
    collect_stats: bool | None


class WeightedLossOptions(LossOptions, total=False):
    """And those of a loss with proxies."""

    weight_regularizer: Any
    weight_reg_weight: float
    weight_init_func: Any
    negative_share: float
    negative_seed: int


class ClassLossOptions(WeightedLossOptions, total=False):
    """And those of a softmax over classes."""

    negative_correction: bool


class StandIn(nn.Module):
    """In place of its ``BaseMetricLossFunction``."""

    if TYPE_CHECKING:  # of the peer alone, and called where it is installed
        add_embedding_regularization_to_loss_dict: Callable[..., None]
        add_weight_regularization_to_loss_dict: Callable[..., None]

    def __init__(self, *, distance: Any = None, embedding_reg_weight: float = 1, **options: Any) -> None:
        super().__init__()
        for name, value in options.items():
            refuse(name, value)
        if not isinstance(distance, str):
            refuse("distance", distance)
        self.distance = distance
        self.collect_stats = False
        self.reducer: Any = None
        self.embedding_regularizer: Any = None
        self.embedding_reg_weight = embedding_reg_weight

    def _sub_loss_names(self) -> list[str]:
        return ["loss"]

    def sub_loss_names(self) -> list[str]:
        """Names of the parts that a reducer sees."""
        return self._sub_loss_names()

    def add_to_recordable_attributes(self, **_: Any) -> None:
        """Its record keepers are not here."""


class StandInWeights:
    """In place of its ``WeightRegularizerMixin``."""

    def __init__(
        self,
        *,
        weight_regularizer: Any = None,
        weight_reg_weight: float = 1,
        weight_init_func: Any = None,
        **options: Any,
    ) -> None:
        refuse("weight_regularizer", weight_regularizer)
        super().__init__(**options)
        self.weight_regularizer: Any = None
        self.weight_reg_weight = weight_reg_weight
        self.weight_init_func = weight_init_func or self.get_default_weight_init_func()

    def get_default_weight_init_func(self) -> Any:
        """What fills a fresh parameter, in place."""
        return nn.init.normal_


def refuse(name: str, value: object) -> None:
    """Raise where ``value`` is given: only the peer can serve it."""
    if value is not None:
        raise ValueError(
            f"{name}={value!r} is served by {PACKAGE}, which is not installed: pip install {PACKAGE}, or leave it out"
        )


if TYPE_CHECKING:
    INSTALLED: bool
    peer_losses: Any
    peer_distances: Any
    peer_reducers: Any
    PeerBase = StandIn
    PeerWeights = StandInWeights
else:
    try:
        from pytorch_metric_learning import distances as peer_distances
        from pytorch_metric_learning import losses
        from pytorch_metric_learning import reducers as peer_reducers
        from pytorch_metric_learning.losses import BaseMetricLossFunction as PeerBase
        from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin as PeerWeights

        # Its own, also where somebody puts ours in their places.
        peer_losses = SimpleNamespace(**vars(losses))
        INSTALLED = True
    except ImportError:
        INSTALLED = False
        PeerBase, PeerWeights = StandIn, StandInWeights
        peer_distances = peer_losses = peer_reducers = None
