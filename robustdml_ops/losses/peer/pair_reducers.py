"""pytorch-metric-learning's reducers of pairs, from sums of the pairs of each anchor.

A reducer sees the loss of every pair. These need only, for each anchor, the sum over its pairs above a threshold, how
many those are, and how many pairs there are in all.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.losses.families.pairs import PairInputs
from robustdml_ops.losses.peer.miner_indices import ListedPairs
from robustdml_ops.losses.peer.package import SubLosses, peer_reducers
from robustdml_ops.ops import PairHinge


class HingeSums(NamedTuple):
    """The pairs of one sign, by anchor: (n,) each."""

    sums: Tensor
    above: Tensor  # pairs whose loss is above the threshold
    pairs: Tensor  # all


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
    sums = [hinge.positive, hinge.negative]
    if inputs.weights is not None:
        sums = [inputs.weights * one for one in sums]
    if inputs.listed is not None:
        pairs = count_listed(inputs.listed, len(embeddings))
    else:
        pairs = count_labelled(own, candidate_labels)
    above = (hinge.positive_count, hinge.negative_count)
    sub_losses: SubLosses = {}
    for name, reducer, *side in zip(("pos_loss", "neg_loss"), reducers, sums, above, pairs, strict=True):
        loss = reduce_pairs(reducer, HingeSums(*side), labels)
        sub_losses[name] = {"losses": loss, "indices": None, "reduction_type": "already_reduced"}
    return sub_losses


def reduce_pairs(reducer: Any, side: HingeSums, labels: Tensor | None) -> Tensor:
    """Reduce the pairs, (), with a reducer that has a threshold; ``labels`` are those of the anchors."""
    kind = type(reducer)
    total: Tensor = side.sums.sum()
    if kind is peer_reducers.SumReducer:
        return total
    if kind is peer_reducers.MeanReducer:
        return total / side.pairs.sum().clamp(min=1)
    if kind is peer_reducers.ClassWeightedReducer:
        if labels is None:
            raise ValueError("reducer=ClassWeightedReducer weighs by labels, and there are none: give them, too")
        weights: Tensor = reducer.weights.to(side.sums)[labels.to(side.sums.device)]
        return (weights * side.sums).sum() / side.pairs.sum().clamp(min=1)
    return total / side.above.sum().clamp(min=1)


def count_listed(listed: ListedPairs, n: int) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs of each anchor, (n,) each, of a list."""
    return torch.bincount(listed.positive_anchors, minlength=n), torch.bincount(listed.negative_anchors, minlength=n)


def count_labelled(labels: Tensor, candidate_labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same of sets of labels; None, or the same tensor: sample i is not its own candidate."""
    itself = candidate_labels is None or candidate_labels is labels
    ordered = torch.sort(labels if candidate_labels is None else candidate_labels)[0]
    present = labels != ABSENT
    equal = torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)
    others = (ordered != ABSENT).sum() - equal
    return (equal - int(itself)) * present, others * present
