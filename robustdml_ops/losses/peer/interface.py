"""A loss as the peer's wrappers, trainers and testers expect it.

A call is served in one of three ways, of which the first serves almost all scripts:

1. With the default reducer and distance: one fused sum, ``_fused_loss`` of a family.
2. With another reducer, or statistics: fused sums for each sample or proxy, ``_sub_losses``, which the reducer takes.
3. With a distance (or, on pairs, a reducer) that no fused sum has: the peer's dense code, after a warning.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from robustdml_ops.engine.labels import are_several, signed_labels, with_label
from robustdml_ops.engine.proxy_update import refuse_update
from robustdml_ops.engine.validation import check_choice, check_finite_numbers
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.peer.package import (
    INSTALLED,
    PACKAGE,
    PeerBase,
    SubLosses,
    dense_sub_losses,
    named,
    peer_distance,
    peer_distances,
    peer_reducers,
    reducer_of,
    reducible,
)

# Steps of the peer's dense code, which a subclass may have been written to change.
_DENSE_STEPS = {
    "_compute_loss",
    "mat_based_loss",
    "pair_based_loss",
    "get_per_pair_loss",
    "pos_calc",
    "neg_calc",
    "nca_computation",
    "cast_types",
}


class PeerInterface(PeerBase):
    """The peer's arguments of a loss: distance, reducer, regularisers and what it records."""

    served_forms: ClassVar[tuple[str, ...]] = ("cosine",)  # distances that the fused sums have
    default_form: ClassVar[str] = "cosine"
    recordable: ClassVar[tuple[str, ...]] = ()  # settings that the peer's losses have under the same names
    default_reducer: ClassVar[str] = "MeanReducer"  # the peer's name of what reduction="mean" does
    dense_size: ClassVar[str] = "batch × classes"  # of the matrices that the dense code keeps
    parts: tuple[str, ...] = ("loss",)  # names of the sub-losses
    _own_compute_loss: ClassVar[bool] = False  # a subclass has its own compute_loss
    reduction: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _DENSE_STEPS & vars(cls).keys():
            raise TypeError(
                f"{cls.__name__}.{name} is a step of {PACKAGE}'s dense code, which the fused losses do not take: "
                "derive from its class, or override compute_loss"
            )
        if "compute_loss" in vars(cls):
            cls._own_compute_loss = True

    def __init__(self, *, distance: Any = None, **options: Any) -> None:
        if isinstance(distance, str):
            check_choice(self.served_forms, distance=distance)
            distance = peer_distance(distance) if INSTALLED else distance
        if not INSTALLED and distance is None:
            distance = self.default_form
        weights = {name: options[name] for name in ("embedding_reg_weight", "weight_reg_weight") if name in options}
        check_finite_numbers(**weights)
        super().__init__(distance=distance, **options)
        self.add_to_recordable_attributes(list_of_names=self.recordable, is_stat=False)
        self._warned = False

    def _sub_loss_names(self) -> list[str]:
        return [*self.parts]

    def get_default_distance(self) -> Any:
        """The peer's object, where it is installed."""
        return peer_distance(self.default_form)

    def get_default_reducer(self) -> Any:
        """The peer's object, where it is installed."""
        return getattr(peer_reducers, self.default_reducer)()

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
    ) -> SubLosses:
        """Sub-losses by name, before they are reduced, in the form that the peer's reducers take."""
        inputs, reason = LossInputs(embeddings, labels, indices_tuple, ref_emb, ref_labels), self._dense_reason()
        return self._regularized(self._sub_losses(inputs) if reason is None else self._dense(inputs, reason))

    def is_fused(self) -> bool:
        """Whether one fused sum is the loss, but for regularisers."""
        if self.reduction != "mean":
            self._refuse_dense(f"reduction={self.reduction!r}")
            return True
        if self._own_compute_loss or self._dense_reason() is not None:
            return False
        # By the dictionaries: nn.Module's attribute access takes as long as all the rest.
        reducer: Any = self._modules.get("reducer")
        if reducer is None:
            return True
        kind, each = getattr(peer_reducers, self.default_reducer), [reducer]
        if type(reducer) is peer_reducers.MultipleReducers:
            each = [reducer_of(reducer, name) for name in self.parts]
        return all(type(one) is kind and not one.collect_stats for one in each)

    def _peer_settings(self) -> tuple[Any, ...]:
        """Settings of the distance and of the reducer that may change without the loss."""
        # By the dictionaries, as above.
        distance: Any = self._modules.get("distance")
        reducer: Any = self._modules.get("reducer")
        of_distance = None
        if distance is not None:
            of_distance = (distance.normalize_embeddings, distance.p, distance.power, distance.is_inverted)
        if reducer is None:
            return (of_distance,)
        several = reducer._modules.get("reducers")
        each = () if several is None else tuple((type(one), one.collect_stats) for one in several._modules.values())
        return of_distance, reducer.collect_stats, each

    def _loss_by_reducer(self, inputs: LossInputs) -> Tensor:
        """Sub-losses, reduced by the peer's reducer."""
        embeddings, labels, distance = inputs.embeddings, inputs.labels, self.distance
        if not isinstance(distance, str) and distance.collect_stats:  # as its own forward
            matrix, candidates = self._class_matrix(), embeddings if inputs.ref_emb is None else inputs.ref_emb
            rows = (embeddings.detach(), (candidates if matrix is None else matrix).detach())
            distance.reset_stats()
            distance.set_default_stats(*rows, *map(distance.maybe_normalize, rows))
        if are_several(labels):
            raise ValueError("labels of several classes with a reducer of its own: take reduction='none', and reduce")
        if inputs.sample_ids is not None or inputs.ref_ids is not None:
            raise ValueError("sample_ids with a reducer or distance that has no fused sum: take reduction='none'")
        if inputs.sample_weights is None and inputs.margins is None:
            sub_losses = self.compute_loss(*inputs[:5])
        else:
            own = "sample_weights" if inputs.margins is None else "margins"
            self._refuse_dense("ignore_index" if getattr(self, "ignore_index", None) is not None else own)
            sub_losses = self._regularized(self._sub_losses(inputs))
        self.add_embedding_regularization_to_loss_dict(sub_losses, embeddings)
        loss: Tensor = self.reducer(sub_losses, embeddings, None if labels is None else labels.to(embeddings.device))
        return loss

    def _dense(self, inputs: LossInputs, reason: str) -> SubLosses:
        refuse_update(self._update(), reason, "leave it out, or train the proxies with an optimiser of torch.optim")
        return dense_sub_losses(self, inputs, reason)

    def _regularized(self, sub_losses: SubLosses) -> SubLosses:
        sub_losses = {name: reducible(sub_loss) for name, sub_loss in sub_losses.items()}
        if self.weight_regularizer is not None:
            sub_losses["weight_reg_loss"] = self.weight_regularization_loss(self._class_matrix())
        return sub_losses

    def _regularization(self, embeddings: Tensor) -> Tensor:
        """Sum of the regularisers of embeddings and of the class matrix, weighted, of which there is one at least."""
        of_embeddings = self.embedding_regularization_loss(embeddings)["losses"]
        total: Tensor = of_embeddings + self.weight_regularization_loss(self._class_matrix())["losses"]
        return total

    def _dense_reason(self) -> str | None:
        """The argument that no fused sum serves."""
        return None if self._form() in self.served_forms else named(self.distance)

    def _form(self) -> str | None:
        """Form of a distance of unit vectors with cosine s: s, √(2 − 2s) or 2 − 2s; None: another, or a subclass."""
        # By the dictionary: nn.Module's attribute access takes as long as all the rest.
        distance: Any = self._modules.get("distance") or self.distance
        if isinstance(distance, str):
            return distance
        if not distance.normalize_embeddings or distance.p != 2:
            return None
        if type(distance) in (peer_distances.CosineSimilarity, peer_distances.DotProductSimilarity):
            return "cosine" if distance.power == 1 and distance.is_inverted else None
        if type(distance) is peer_distances.LpDistance and not distance.is_inverted:
            return {1: "euclidean", 2: "squared"}.get(distance.power)
        return None

    def _refuse_dense(self, argument: str) -> None:
        reason = self._dense_reason()
        if reason is not None:
            raise ValueError(f"{argument} is of the fused sums, and {reason} is in none of them: leave one out")

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        """Fused sub-losses, before they are reduced."""
        raise NotImplementedError

    def _class_matrix(self) -> Tensor | None:
        """One row for each class or centre that is here; None: the loss has no parameters."""
        return None

    def _update(self) -> Any:
        """The step that an optimiser of ``robustdml_ops.optim`` takes on the class matrix within the sweep."""
        return None


def without_label(inputs: LossInputs, ignore_index: int) -> LossInputs:
    """Give samples labelled ``ignore_index`` the weight 0; arguments of wrong kinds stay as they are."""
    embeddings, given, indices_tuple, ref_emb, ref_labels, weights, *rest = inputs
    labels = signed_labels(given)
    if are_several(labels):
        raise ValueError(f"ignore_index={ignore_index} beside labels of several classes: fill them up with ops.ABSENT")
    if not isinstance(labels, Tensor):
        return inputs
    ignored = with_label(labels, ignore_index)
    if weights is None:
        weights = (~ignored).float()
    elif isinstance(weights, Tensor) and weights.shape == ignored.shape:
        weights = weights * (~ignored).to(weights.device, weights.dtype)
    # The label of an absent sample is not looked at, but must be in range.
    known = torch.where(ignored, 0, labels)
    ref_labels = known if ref_labels is given else ref_labels
    return LossInputs(embeddings, known, indices_tuple, ref_emb, ref_labels, weights, *rest)
