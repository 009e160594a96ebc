"""pytorch-metric-learning's reducers of pairs, from sums over the pairs of each anchor and their numbers."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.losses.families.pairs import PairInputs
from robustdml_ops.losses.peer.package import SubLosses, peer_reducers
from robustdml_ops.ops import PairHinge


def reducer_of(reducer: Any, name: str) -> Any:
    """The reducer of a sub-loss: its own, or the common one of a MultipleReducers."""
    several = getattr(reducer, "reducers", None)
    return reducer if several is None else dict(several).get(name, reducer.default_reducer)


def threshold_of(reducer: Any) -> float | None:
    """What a pair's loss must exceed to count, 0 for all that do not ask; None: no fused sum serves the reducer."""
    kind = type(reducer)
    if reducer.collect_stats:
        return None
    if kind in (peer_reducers.ThresholdReducer, peer_reducers.AvgNonZeroReducer):
        return float(reducer.low) if reducer.high is None and reducer.low >= 0 else None
    if kind in (peer_reducers.MeanReducer, peer_reducers.SumReducer, peer_reducers.ClassWeightedReducer):
        return 0.0
    return None


def reduced_hinges(reducers: list[Any], hinge: PairHinge, inputs: PairInputs, labels: Tensor | None) -> SubLosses:
    """Sub-losses of the hinges of each anchor's pairs, each reduced by its own reducer, one with a threshold."""
    embeddings, own, _, candidate_labels = inputs.pairs
    if inputs.listed is not None:
        anchors = (inputs.listed.positive_anchors, inputs.listed.negative_anchors)
        pairs = [torch.bincount(rows, minlength=len(embeddings)) for rows in anchors]
    else:
        pairs = count_labelled(own, candidate_labels)
    sides = ((hinge.positive, hinge.positive_count, pairs[0]), (hinge.negative, hinge.negative_count, pairs[1]))
    sub_losses: SubLosses = {}
    for name, reducer, (sums, above, number) in zip(("pos_loss", "neg_loss"), reducers, sides, strict=True):
        weighted = sums if inputs.weights is None else inputs.weights * sums
        loss = _reduced(reducer, weighted, above, number, labels)
        sub_losses[name] = {"losses": loss, "indices": None, "reduction_type": "already_reduced"}
    return sub_losses


def _reduced(reducer: Any, sums: Tensor, above: Tensor, pairs: Tensor, labels: Tensor | None) -> Tensor:
    """The loss (), from each anchor's sum and number (n,) of pairs above the threshold, and its number of pairs."""
    kind = type(reducer)
    if kind is peer_reducers.SumReducer:
        return sums.sum()
    if kind is peer_reducers.ClassWeightedReducer:
        if labels is None:
            raise ValueError("reducer=ClassWeightedReducer weighs by labels, and there are none: give them, too")
        sums = reducer.weights.to(sums)[labels.to(sums.device)] * sums
    counted = pairs if kind in (peer_reducers.MeanReducer, peer_reducers.ClassWeightedReducer) else above
    return sums.sum() / counted.sum().clamp(min=1)


def count_labelled(labels: Tensor, candidate_labels: Tensor | None) -> list[Tensor]:
    """Positive and negative pairs of each anchor, (n,) each; without other candidates no anchor is its own."""
    itself = candidate_labels is None or candidate_labels is labels
    ordered = torch.sort(labels if candidate_labels is None else candidate_labels)[0]
    present = labels != ABSENT
    equal = torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)
    others = (ordered != ABSENT).sum() - equal
    return [(equal - int(itself)) * present, others * present]
