"""What all losses share: the interface of pytorch-metric-learning, and the choice between fused sums and its own code.

A loss is called as the peer's are, ``loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)``, in one of three
ways, of which the first serves almost all scripts:

1. With its default reducer: one fused sum, ``_loss``.
2. With another reducer, or statistics: fused sums, one for each sample or proxy, ``_parts``, which the reducer takes.
3. With a distance (or, on pairs, a reducer) that no fused sum has: the peer's own dense code, after a warning.
"""

import difflib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.engine.proxy_update import ProxyUpdate, may_update, refuse_update, update_of
from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess, settings_of
from robustdml_ops.losses.own_pairs import own_pairs
from robustdml_ops.losses.peer.distances import fused_form, keep_statistics, named, peer_distance
from robustdml_ops.losses.peer.package import INSTALLED, PACKAGE, LossOptions, PeerBase, PeerWeights, peer_reducers
from robustdml_ops.losses.reduction import check_reduction

# Steps of the peer's dense code, which a subclass may have been written to change.
_DENSE_STEPS = (
    "_compute_loss",
    "mat_based_loss",
    "pair_based_loss",
    "get_per_pair_loss",
    "pos_calc",
    "neg_calc",
    "nca_computation",
    "cast_types",
)

# Sub-losses by name, as the peer's reducers take them.
Parts = dict[str, dict[str, Any]]


class Batch(NamedTuple):
    """What a loss is called with."""

    embeddings: Tensor
    labels: Tensor | None
    indices_tuple: tuple[Tensor, ...] | None
    ref_emb: Tensor | None
    ref_labels: Tensor | None
    sample_weights: Tensor | None


class MetricLoss(PeerBase):
    """A loss with the peer's interface; a subclass has the sums."""

    served_forms: ClassVar[tuple[str, ...]] = ("cosine",)  # distances that the fused sums have
    default_form: ClassVar[str] = "cosine"
    default_reducer: ClassVar[str] = "MeanReducer"  # the peer's name of what reduction="mean" does
    dense_size: ClassVar[str] = "batch × classes"  # of the matrices that the peer's code keeps
    known_options: ClassVar[type] = LossOptions  # names of its keyword arguments
    _own_compute_loss: ClassVar[bool] = False  # a subclass has its own compute_loss
    weighs_losses: ClassVar[bool] = False  # whether sample weights multiply losses that all processes have
    shards: OneProcess = ONE_PROCESS  # who has the other classes

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _DENSE_STEPS:
            if name in vars(cls):
                raise TypeError(
                    f"{cls.__name__}.{name} is a step of {PACKAGE}'s dense code, which the fused losses do not take: "
                    "derive from its class, or override compute_loss"
                )
        if "compute_loss" in vars(cls):
            cls._own_compute_loss = True

    def __init__(
        self,
        *,
        reduction: str = "mean",
        backend: str | None = None,
        ignore_index: int | None = None,
        distance: Any = None,
        **options: Any,
    ) -> None:
        check_reduction(reduction)
        if isinstance(distance, str) and distance not in self.served_forms:
            raise ValueError(f"distance={distance!r}: expected one of {', '.join(self.served_forms)}")
        if INSTALLED and isinstance(distance, str):
            distance = peer_distance(distance)
        elif not INSTALLED and distance is None:
            distance = self.default_form
        super().__init__(distance=distance, **options)
        self.reduction = reduction
        self.backend = backend
        self.ignore_index = ignore_index
        self._warned = False

    def get_default_distance(self) -> Any:
        """The peer's object, where it is installed."""
        return peer_distance(self.default_form)

    def get_default_reducer(self) -> Any:
        """The peer's object, where it is installed."""
        return getattr(peer_reducers, self.default_reducer)()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch; see the subclass."""
        batch = Batch(embeddings, labels, indices_tuple, ref_emb, ref_labels, sample_weights)
        if isinstance(embeddings, Tensor) and embeddings.dtype == torch.float64 and not self.shards.divided:
            self._widen()
        if self.ignore_index is not None:
            batch = _ignore(batch, self.ignore_index)
        if self.shards.divided:
            if batch.ref_labels is batch.labels:  # another tensor will take its place
                batch = batch._replace(ref_labels=None)
            return self.shards.guard(self._own_loss, self._of_all(batch, lambda: self._own_rows(batch)))
        if not self.is_fused():
            return self._reduced(batch)
        loss, added = self._loss(batch), self._regularization(embeddings)
        return loss + added if isinstance(added, Tensor) else loss

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
    ) -> Parts:
        """Sub-losses by name, before they are reduced, in the form that the peer's reducers take."""
        batch = Batch(embeddings, labels, indices_tuple, ref_emb, ref_labels, None)
        reason = self._dense_reason()
        return self._parts(batch) if reason is None else self._dense(batch, reason)

    def _regularization(self, embeddings: Tensor) -> Tensor | float:
        """Sum of the regularisers of embeddings and of the class matrix, weighted; 0 where there is none."""
        total: Tensor | float = 0.0
        if self.embedding_regularizer is not None:
            total = total + self.embedding_regularizer(embeddings) * self.embedding_reg_weight
        if isinstance(self, PeerWeights) and self.weight_regularizer is not None:
            total = total + self.weight_regularizer(self._class_matrix()) * self.weight_reg_weight
        return total

    def _reduced(self, batch: Batch) -> Tensor:
        """Sub-losses, reduced by the peer's reducer."""
        embeddings, labels = batch.embeddings, batch.labels
        keep_statistics(self.distance, embeddings, self._others(batch))
        if batch.sample_weights is None:
            parts = self.compute_loss(*batch[:5])
        else:
            self._refuse_dense("ignore_index" if self.ignore_index is not None else "sample_weights")
            parts = self._parts(batch)
        self.add_embedding_regularization_to_loss_dict(parts, embeddings)
        loss: Tensor = self.reducer(parts, embeddings, None if labels is None else labels.to(embeddings.device))
        return loss

    def _widen(self) -> None:
        """Turn the parameters into float64 for good, as the peer does: then all that is computed of them is.

        The peer turns them into half precision for good as well, which loses them; the sums here are of float32 then.
        """
        for parameter in self.parameters():
            if parameter.dtype != torch.float64:
                parameter.data = parameter.data.double()

    def is_fused(self) -> bool:
        """Whether one fused sum is the loss, but for regularisers."""
        if self.reduction == "none":
            self._refuse_dense("reduction='none'")
            return True
        if self._own_compute_loss or self._dense_reason() is not None:
            return False
        reducer = self._modules.get("reducer")
        return reducer is None or is_exactly(reducer, self.default_reducer)

    def _dense_reason(self) -> str | None:
        """The argument that no fused sum serves."""
        return None if self._form() in self.served_forms else named(self.distance)

    def _form(self) -> str | None:
        """What the distance is of unit vectors."""
        # By the dictionary: nn.Module's attribute access takes as long as all the rest.
        return fused_form(self._modules.get("distance") or self.distance)

    def _refuse_dense(self, argument: str) -> None:
        reason = self._dense_reason()
        if reason is not None:
            raise ValueError(f"{argument} is of the fused sums, and {reason} is in none of them: leave one out")

    def _dense(self, batch: Batch, reason: str) -> Parts:
        """The peer's own sub-losses."""
        refuse_update(self._update(), reason, "leave it out, or train the proxies with an optimiser of torch.optim")
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self).__name__} with {reason} runs in {PACKAGE}'s dense code: at its speed, and with several "
                f"matrices of {self.dense_size} in memory",
                stacklevel=2,
            )
        embeddings, labels, indices_tuple, ref_emb, ref_labels, _ = batch
        matrix = self._class_matrix()
        if matrix is not None and not torch.is_autocast_enabled(embeddings.device.type):
            # The peer casts its parameters to the type of the embeddings, for good.
            embeddings = embeddings.to(matrix.dtype)
        if ref_emb is None:
            ref_emb, ref_labels = embeddings, labels
        parts: Parts = self._twin().compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return parts

    def _of_all(self, batch: Batch, own_rows: Callable[[], dict[str, Tensor | None]]) -> Batch:
        """The batch of all processes; ``own_rows`` gives the fields of this one's, checked."""
        listed = batch.indices_tuple
        told = len(listed) if isinstance(listed, tuple | list) else listed is not None
        given = {"indices_tuple": told, "the reference set": _reference(batch)}
        rows = self.shards.agree(own_rows, {**settings_of(self), **given})
        weights = rows.pop("sample_weights", None)
        whole: dict[str, Any] = {name: self.shards.gather(value) for name, value in rows.items()}
        if batch.ref_emb is batch.embeddings:
            whole["ref_emb"] = whole["embeddings"]
        if listed is not None:
            n, ref_emb = len(whole["embeddings"]), whole.get("ref_emb", batch.ref_emb)
            m = n if ref_emb is None else len(ref_emb)
            whole["indices_tuple"] = own_pairs(self.shards, listed, rows["embeddings"], n, m)
        return batch._replace(sample_weights=self.shards.gather(weights, not self.weighs_losses), **whole)

    def _own_loss(self, batch: Batch) -> Tensor:
        """The loss of the batch of all processes or, unreduced, of what is this one's."""
        return self._loss(batch)

    def _own_rows(self, batch: Batch) -> dict[str, Tensor | None]:
        """Fields of a batch by their names, checked: what each process brings."""
        raise NotImplementedError

    def _loss(self, batch: Batch) -> Tensor:
        """The loss, (), or its terms, as ``reduction`` says."""
        raise NotImplementedError

    def _parts(self, batch: Batch) -> Parts:
        """Fused sub-losses, before they are reduced."""
        raise NotImplementedError

    def _twin(self) -> Any:
        """The peer's own loss of the same settings and parameters."""
        raise NotImplementedError(f"{PACKAGE} has no {type(self).__name__}")

    def _class_matrix(self) -> Tensor | None:
        """What a regulariser of weights takes: one row a class or centre. None: the loss has no parameters."""
        return None

    def _class_parameter(self) -> nn.Parameter | None:
        """The parameter that the class matrix is, or is a view or a part of."""
        return None

    def _rows_here(self, parameter: nn.Parameter) -> Tensor:
        """What of it is here, as plain memory; where an optimiser steps on it, what that steps on."""
        update = self._update()
        return self.shards.rows(parameter) if update is None else update.local

    def _update(self) -> ProxyUpdate | None:
        """The step that an optimiser of ``robustdml_ops.optim`` takes on the class matrix within the sweep."""
        return update_of(self._class_parameter()) if self.training and may_update() else None

    def _others(self, batch: Batch) -> Tensor:
        """What the embeddings are compared with."""
        matrix = self._class_matrix()
        if matrix is not None:
            return matrix
        return batch.embeddings if batch.ref_emb is None else batch.ref_emb


def check_options(kind: type[MetricLoss], options: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a loss of class ``kind`` does not know, or that exclude each other."""
    known = kind.known_options.__annotations__
    for name, value in options.items():
        if name not in known:
            own = [own for own in inspect.signature(kind).parameters if own not in ("options", "args", "kwargs")]
            near = difflib.get_close_matches(name, [*known, *own], 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise TypeError(f"{kind.__name__} has no argument {name!r}{hint}")
        reduces = name == "reducer" or name.endswith("regularizer")
        if reduces and value is not None and options.get("reduction") == "none":
            raise ValueError(
                f"{name} with reduction='none', which gives the losses before they are reduced: leave one out"
            )


def is_exactly(reducer: Any, name: str) -> bool:
    """Whether ``reducer`` is, in each of its parts, the peer's class of that name, and keeps no statistics."""
    kind = getattr(peer_reducers, name)
    if type(reducer) is not peer_reducers.MultipleReducers:
        return type(reducer) is kind and not reducer.collect_stats
    # By the dictionaries: nn.Module's attribute access takes as long as all the rest.
    parts = reducer._modules["reducers"]._modules.values()
    return all(type(part) is kind and not part.collect_stats for part in parts)


def refuse_candidates(loss: MetricLoss, batch: Batch) -> None:
    """Raise for a reference set where the classes are the candidates; the batch itself is none."""
    given = batch.ref_emb is not None and batch.ref_emb is not batch.embeddings
    if given or (batch.ref_labels is not None and batch.ref_labels is not batch.labels):
        raise ValueError(
            f"{type(loss).__name__} compares samples with its own proxies: leave ref_emb and ref_labels out, or take a "
            "loss on pairs"
        )


def no_initialisation(_: Tensor) -> None:
    """Leave a parameter as it is: it is replaced at once."""


def _reference(batch: Batch) -> str:
    """What the candidates of a batch are, which must be the same on all processes."""
    if batch.ref_emb is None:
        return "not given"
    if hasattr(batch.ref_emb, "to_local"):
        return "that of a divided bank"
    return "a view of own samples" if batch.ref_labels is None else f"{tuple(batch.ref_emb.shape)}, the same for all"


def _ignore(batch: Batch, ignore_index: int) -> Batch:
    """Samples labelled ``ignore_index`` get weight 0, and rows of a reference set take no part."""
    labels, ref_labels, weights = batch.labels, batch.ref_labels, batch.sample_weights
    if labels is None:
        return batch
    ignored = labels == ignore_index
    kept = (~ignored).to(torch.float32 if weights is None else weights.dtype)
    # Those of a divided bank are DTensors: their local parts are looked at.
    if ref_labels is not None and ref_labels is not labels and not hasattr(ref_labels, "to_local"):
        ref_labels = ref_labels.masked_fill(ref_labels == ignore_index, ABSENT)
    # Any class will do: the label of a sample that is absent is not looked at, but must be in range.
    known = labels.masked_fill(ignored, 0)
    ref_labels = known if ref_labels is labels else ref_labels
    return batch._replace(
        labels=known,
        ref_labels=ref_labels,
        sample_weights=kept if weights is None else weights * kept.to(weights.device),
    )
