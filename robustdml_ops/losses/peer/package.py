"""pytorch-metric-learning ("the peer"), where it is installed: its names, and its dense code."""

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from robustdml_ops.losses.inputs import LossInputs

PACKAGE = "pytorch-metric-learning"

# Sub-losses by name, in the form that the peer's reducers take.
SubLosses = dict[str, dict[str, Any]]


class StandIn(nn.Module):
    """In place of the peer's ``BaseMetricLossFunction``: the losses run, and arguments that need the peer raise."""

    parts: tuple[str, ...]  # names of the sub-losses
    if TYPE_CHECKING:  # of the peer alone, and called where it is installed
        add_embedding_regularization_to_loss_dict: Callable[[SubLosses, Tensor], None]
        embedding_regularization_loss: Callable[[Tensor], dict[str, Any]]
        weight_regularization_loss: Callable[[Tensor | None], dict[str, Any]]

    def __init__(
        self, *, distance: Any = None, embedding_reg_weight: float = 1, weight_reg_weight: float = 1, **options: Any
    ) -> None:
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
        self.weight_regularizer: Any = None
        self.weight_reg_weight = weight_reg_weight

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

        class PeerBase(losses.WeightRegularizerMixin, losses.BaseMetricLossFunction):
            """The peer's base of a loss with a class matrix, which serves one without, too."""

        # A copy of its names: a script may replace the peer's losses by ours.
        peer_losses = SimpleNamespace(**vars(losses))
        INSTALLED = True
    except ImportError:
        INSTALLED = False
        PeerBase = StandIn
        peer_distances = peer_losses = peer_reducers = None


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


def reducer_of(reducer: Any, name: str) -> Any:
    """The reducer of a sub-loss: its own, or the common one of a MultipleReducers."""
    several = getattr(reducer, "reducers", None)
    if several is None:
        return reducer
    if name in several:
        return several[name]
    return reducer.default_reducer


def of_each(losses: Tensor, weights: Tensor | None = None, **more: Any) -> dict[str, Any]:
    """A sub-loss with one number for each proxy, or sample of positive weight, (n,); and what else a reducer takes."""
    places = torch.arange(len(losses), device=losses.device)
    if weights is not None:
        places = places[weights > 0]
        losses = losses[places]
    return {"losses": losses, "indices": places, "reduction_type": "element", **more}


def reducible(sub_loss: dict[str, Any]) -> dict[str, Any]:
    """A sub-loss, or 0 in place of one of no samples or pairs, whose mean is NaN."""
    losses = sub_loss["losses"]
    if not isinstance(losses, Tensor) or losses.shape != (0,):
        return sub_loss
    return {"losses": losses.sum(), "indices": None, "reduction_type": "already_reduced"}


def dense_sub_losses(loss: Any, inputs: LossInputs, reason: str) -> SubLosses:
    """The peer's sub-losses of ``loss``'s settings and parameters; warns once that ``reason`` made them necessary."""
    if getattr(loss, "epsilon", None) is not None:
        raise ValueError(f"epsilon={loss.epsilon} mines by cosines, not by {named(loss.distance)}: take a miner")
    if not getattr(loss, "include_positive", True):
        raise ValueError(f"include_positive=False is of the fused sums, and {named(loss.distance)} of none of them")
    if not loss._warned:
        loss._warned = True
        warnings.warn(
            f"{type(loss).__name__} with {reason} runs in {PACKAGE}'s dense code: at its speed, and with several "
            f"matrices of {loss.dense_size} in memory",
            stacklevel=2,
        )
    embeddings, labels, indices_tuple, ref_emb, ref_labels = inputs[:5]
    matrix = loss._class_matrix()
    if matrix is not None and not torch.is_autocast_enabled(embeddings.device.type):
        # The peer casts its parameters to the type of the embeddings, for good.
        embeddings = embeddings.to(matrix.dtype)
    if ref_emb is None:
        ref_emb, ref_labels = embeddings, labels
    sub_losses: SubLosses = _twin(loss).compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
    return sub_losses


def dense_logits(loss: Any, embeddings: Tensor) -> Tensor:
    """The peer's logits (B, C)."""
    if loss.matrix_name == "proxies":
        distances: Tensor = loss.distance(embeddings, loss.proxies)
        return distances
    logits: Tensor = _twin(loss).get_logits(embeddings)
    return logits


def _twin(loss: Any) -> Any:
    """The peer's loss of the same settings and parameters."""
    names = (kind.__name__ for kind in type(loss).__mro__ if hasattr(kind, "recordable"))
    name = next((name for name in names if hasattr(peer_losses, name)), None)
    if name is None:
        raise NotImplementedError(f"{PACKAGE} has no {type(loss).__name__}")
    options: dict[str, Any] = {"distance": loss.distance}
    settings = loss.recordable
    if loss._class_matrix() is not None:
        options |= {"num_classes": 1, "embedding_size": 1, "weight_init_func": lambda _: None}
        settings = (*settings, loss.matrix_name)
    twin = getattr(peer_losses, name)(**options)
    for setting in settings:
        setattr(twin, setting, getattr(loss, setting))
    if name == "SubCenterArcFaceLoss":
        twin.sub_centers = loss.sub_centers
    if name == "ProxyNCALoss":
        twin.proxy_labels = torch.arange(loss.num_classes, device="cpu")
    return twin
