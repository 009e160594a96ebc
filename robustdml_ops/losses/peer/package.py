"""pytorch-metric-learning ("the peer"), where it is installed, and its distances in terms of cosines.

``PeerBase`` is the only class of the losses' hierarchy that depends on the installation. It has to be the peer's own
base class there: its ``DistributedLossWrapper`` refuses everything else by ``isinstance``.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

PACKAGE = "pytorch-metric-learning"

# Sub-losses by name, in the form that the peer's reducers take.
SubLosses = dict[str, dict[str, Any]]


class StandIn(nn.Module):
    """In place of the peer's ``BaseMetricLossFunction``: the losses run, and arguments that need the peer raise."""

    parts: tuple[str, ...]  # names of the sub-losses
    if TYPE_CHECKING:  # of the peer alone, and called where it is installed
        add_embedding_regularization_to_loss_dict: Callable[[SubLosses, Tensor], None]

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

    def sub_loss_names(self) -> list[str]:
        """Names of the sub-losses that a reducer takes."""
        return [*self.parts]

    def add_to_recordable_attributes(self, **_: Any) -> None:
        """No-op: the record keepers are the peer's."""


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
else:
    try:
        from pytorch_metric_learning import distances as peer_distances
        from pytorch_metric_learning import losses
        from pytorch_metric_learning import reducers as peer_reducers
        from pytorch_metric_learning.losses import BaseMetricLossFunction as PeerBase

        # A copy of its names: a script may replace the peer's losses by ours.
        peer_losses = SimpleNamespace(**vars(losses))
        INSTALLED = True
    except ImportError:
        INSTALLED = False
        PeerBase = StandIn
        peer_distances = peer_losses = peer_reducers = None


def fused_form(distance: Any) -> str | None:
    """Form of a distance of unit vectors with cosine s: s, √(2 − 2s) or 2 − 2s; None: another, or a subclass."""
    if isinstance(distance, str):
        return distance
    if not distance.normalize_embeddings or distance.p != 2:
        return None
    if type(distance) in (peer_distances.CosineSimilarity, peer_distances.DotProductSimilarity):
        return "cosine" if distance.power == 1 and distance.is_inverted else None
    if type(distance) is peer_distances.LpDistance and not distance.is_inverted:
        return {1: "euclidean", 2: "squared"}.get(distance.power)
    return None


def peer_distance(form: str) -> Any:
    """The peer's object for a form."""
    if form == "cosine":
        return peer_distances.CosineSimilarity()
    return peer_distances.LpDistance(power=1 if form == "euclidean" else 2)


def named(distance: Any) -> str:
    """``distance=…`` as it was made, for a message."""
    if isinstance(distance, str):
        return f"distance={distance!r}"
    settings = f"p={distance.p}, power={distance.power}, normalize_embeddings={distance.normalize_embeddings}"
    return f"distance={type(distance).__name__}({settings})"
