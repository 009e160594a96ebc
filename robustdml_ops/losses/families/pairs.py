"""Losses on pairs: which samples are anchors and candidates, and the weight of a sample's loss."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.labels import (
    ABSENT,
    are_several,
    class_labels,
    pair_labels,
    shared_labels,
    with_label,
    without_samples,
)
from robustdml_ops.engine.plan import Plan
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.validation import check_matrix, check_same_device, check_sample_weights
from robustdml_ops.losses.families.metric_loss import MetricLoss
from robustdml_ops.losses.first_pairs import FirstPairs
from robustdml_ops.losses.inputs import LossInputs, own_samples
from robustdml_ops.losses.observation import Observation
from robustdml_ops.losses.peer.listed_pairs import Cosines, ListedPairs, listed_pairs
from robustdml_ops.losses.peer.package import SubLosses, of_each
from robustdml_ops.ops.pairs.arguments import check_ids, pair_sets
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.formula import PairFormula
from robustdml_ops.ops.pairs.gpu_plan import pair_gpu_plan
from robustdml_ops.ops.pairs.plan import pair_plan
from robustdml_ops.ops.pairs.sets import PairSets


class PairInputs(NamedTuple):
    """The checked inputs of a loss on pairs."""

    pairs: tuple[Tensor, Any, Tensor | None, Tensor | None]  # anchors, labels, candidates, candidate labels
    listed: ListedPairs | None  # the pairs themselves; labels do not matter then
    weights: Tensor | None  # (B,) compute type
    present: Tensor | int  # () number of samples whose weight is not 0, of all processes, at least 1
    anchors_first: bool = False  # the first candidates are the anchors
    sharded: bool = False  # candidates are the shard of this process, anchors the samples of all
    ids: tuple[Tensor | None, Tensor | None] = (None, None)  # (n, 1) and (m, 1), where they are given
    seen: Observation | None = None  # takes what each sweep sees

    def of_sets(self) -> dict[str, Any]:
        """Arguments of the ops on pairs, beside :attr:`pairs`, for one sweep."""
        given = {"anchors_first": self.anchors_first, "sample_ids": self.ids[0], "candidate_ids": self.ids[1]}
        if self.seen is None:
            return given
        embeddings, _, candidates, _ = self.pairs
        return {**given, "hardest": self.seen.room(embeddings, pair_dtype(embeddings, candidates), self.sharded)}

    def sets(self) -> PairSets:
        """The sets of the anchors."""
        return pair_sets(*self.pairs, self.anchors_first, self.ids)

    def scale(self, divisor: float = 1.0) -> Tensor:
        """Factor of each sample's loss in the mean, () or (B,): weight / (present · divisor)."""
        if self.weights is None:
            embeddings, _, candidates, _ = self.pairs
            scale = 1 / (self.present * divisor)  # a number: without weights all samples are present
            return embeddings.new_full((), scale, dtype=pair_dtype(embeddings, candidates))  # type: ignore[arg-type]
        return self.weights / (self.present * divisor)

    def cosines(self) -> Cosines:
        """Cosines of the listed pairs."""
        assert self.listed is not None
        return Cosines(self.pairs[0], self.pairs[2], self.listed)

    def weighted(self, losses: Tensor) -> Tensor:
        """The losses (B,) times the weights of their samples."""
        return losses if self.weights is None else losses * self.weights


class PairFamilyLoss(MetricLoss):
    """One loss per sample, of its pairs with the batch or with given candidates; a subclass has the terms."""

    dense_size = "batch × candidates"
    takes_ids = observable = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first_steps = FirstPairs()

    def _signature(self, inputs: LossInputs) -> tuple[Sequence[Any], tuple[Any, ...]]:
        ref_labels = None if inputs.ref_labels is inputs.labels else inputs.ref_labels
        tensors = (inputs.embeddings, inputs.ref_emb, None, None, inputs.labels, ref_labels, inputs.sample_weights)
        return (*tensors, inputs.sample_ids, inputs.ref_ids, inputs.label_weights), self._peer_settings()

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        return self._pair_plan(tensors)

    def _pair_plan(self, tensors: Sequence[Any]) -> Plan | None:
        """The plan of one native call, or of launches."""
        labels, ref_labels, *_, label_weights = tensors[4:]
        if labels is None or label_weights is not None or not self._is_plain(tensors):
            return None
        kept = copy.copy(self)
        kept.__dict__["_plans"] = None
        formula = replace(self._formula(tensors), ignored=self.ignore_index)
        given = (formula, tensors[:9], self.backend, ref_labels is None, partial(_of_tensors, kept))
        return pair_plan(*given) or pair_gpu_plan(*given)

    def _is_plain(self, tensors: Sequence[Any]) -> bool:
        # Samples to ignore have weight 0 by now, and a plan knows the label of such candidates.
        plain = self.reduction == "mean" and self.embedding_regularizer is None and not self.shards.divided
        return plain and self.is_fused()

    def _formula(self, tensors: Sequence[Any]) -> PairFormula:
        """The mean loss of these tensors of a signature."""
        raise NotImplementedError

    def _refuse(self, inputs: LossInputs) -> None:
        """Raise for arguments that the loss does not take."""

    def _refuse_divided_bank(self, inputs: LossInputs, why: str) -> None:
        if self.shards.is_sharded(inputs.ref_emb):
            raise ValueError(
                f"{why}, and each process has some of its slots: give bank.features.full_tensor() and "
                "bank.labels.full_tensor() as ref_emb and ref_labels"
            )

    def _own_rows(self, inputs: LossInputs) -> OwnRows:
        self._refuse(inputs)
        embeddings = check_matrix("embeddings", inputs.embeddings)
        rows = own_samples(embeddings, inputs.sample_weights, pair_dtype(embeddings, inputs.ref_emb))
        if inputs.indices_tuple is not None:
            self._refuse_divided_bank(inputs, "indices_tuple lists pairs with rows of a whole bank")
        if self.shards.is_sharded(inputs.ref_emb) != self.shards.is_sharded(inputs.ref_labels):
            raise ValueError("ref_emb and ref_labels must both be DTensors, as those of a divided bank, or both local")
        if inputs.ref_emb is not None and inputs.ref_labels is None:  # another view of own samples
            check_matrix("ref_emb", inputs.ref_emb, columns=embeddings.shape[1])
            if inputs.ref_emb is not embeddings:
                rows["ref_emb"] = inputs.ref_emb
            if len(inputs.ref_emb) != len(embeddings):
                raise ValueError(
                    f"ref_emb has {len(inputs.ref_emb)} rows, and without ref_labels they are another view of the "
                    f"{len(embeddings)} samples: give labels of their own"
                )
        labels = None
        if inputs.labels is not None or inputs.indices_tuple is None:
            labels_of = shared_labels if are_several(inputs.labels) else class_labels
            labels = labels_of(inputs.labels, embeddings)
        return {**rows, "labels": labels, "sample_ids": self._ids(inputs)[0]}

    def _joint_inputs(self, inputs: LossInputs) -> LossInputs:
        joint = super()._joint_inputs(inputs)
        first = self.first_steps if self.training and not torch.compiler.is_compiling() else None
        if isinstance(first, FirstPairs) and not first.over:
            first.joint = joint
        return joint

    def _own_anchors(self, inputs: PairInputs) -> PairInputs:
        """Restrict the anchors of joint inputs to the samples of this process; sharded candidates keep all anchors."""
        if not self.shards.divided or inputs.sharded:
            return inputs
        own, (embeddings, labels, candidates, candidate_labels) = self.shards.own_slice(), inputs.pairs
        weights = None if inputs.weights is None else inputs.weights[own]
        among = candidates is None or candidate_labels is labels  # the samples, or another view of them
        if candidates is None:
            candidates = embeddings
        elif candidates.requires_grad and not among:
            candidates = self.shards.sum_gradient(candidates)
        if inputs.listed is not None:
            positive_anchors, positives, negative_anchors, negatives = inputs.listed
            listed = ListedPairs(positive_anchors - own.start, positives, negative_anchors - own.start, negatives)
            return PairInputs((embeddings[own], None, candidates, None), listed, weights, inputs.present)
        if among:
            candidates, candidate_labels = self.shards.put_own_first(candidates), self.shards.put_own_first(labels)
        pairs = (embeddings[own], labels[own], candidates, candidate_labels)
        ids, candidate_ids = inputs.ids
        if ids is not None:
            candidate_ids = self.shards.put_own_first(ids) if among else candidate_ids
            ids = ids[own]
        return PairInputs(pairs, None, weights, inputs.present, among, False, (ids, candidate_ids), inputs.seen)

    def _mean(self, losses: Tensor, inputs: PairInputs) -> Tensor:
        """Reduce the losses (B,) of the anchors; sum and mean are over the samples of all processes."""
        weights = inputs.weights
        if inputs.sharded:  # the losses are those of all samples
            losses, weights = (
                self.shards.take_own(losses),
                None if weights is None else weights[self.shards.own_slice()],
            )
        weighted = losses if weights is None else losses * weights
        if self.reduction == "none":
            return weighted
        total = self.shards.sum_terms(weighted.sum())
        return total if self.reduction == "sum" else total / inputs.present

    def _checked(self, inputs: LossInputs) -> PairInputs:
        self._refuse(inputs)
        embeddings, ref_emb = check_matrix("embeddings", inputs.embeddings), inputs.ref_emb
        labels, ref_labels = inputs.labels, inputs.ref_labels
        sharded = self.shards.is_sharded(ref_emb)
        if ref_emb is not None and ref_labels is not None and sharded:
            ref_emb, ref_labels = self.shards.local_shard(ref_emb), self.shards.local_shard(ref_labels)
        if ref_emb is not None:
            check_matrix("ref_emb", ref_emb, columns=embeddings.shape[1])
            check_same_device(embeddings=embeddings, ref_emb=ref_emb)
            ref_labels = labels if ref_labels is None else ref_labels
        elif ref_labels is not None and ref_labels is not labels:
            raise ValueError("ref_labels without ref_emb: give both, or neither, for the inputs itself")
        listed = None
        if inputs.indices_tuple is not None:
            listed = listed_pairs(
                inputs.indices_tuple, len(embeddings), len(embeddings if ref_emb is None else ref_emb)
            )
        if labels is not None or listed is None:
            given: Any = ref_labels
            labels, ref_labels = pair_labels(labels, embeddings, ref_labels, ref_emb)
            if self.ignore_index is not None and ref_labels is not None and ref_labels is not labels:
                ignored = with_label(given, self.ignore_index).to(ref_labels.device)
                ref_labels = ref_labels.masked_fill(ignored, ABSENT)
        weights = inputs.sample_weights
        present: Tensor | int = max(1, len(embeddings))
        if weights is not None:
            like = embeddings.new_empty(len(embeddings), dtype=pair_dtype(embeddings, ref_emb))
            weights = check_sample_weights(weights, like)
            absent = weights == 0
            present = (~absent).sum(dtype=weights.dtype).clamp(min=1)  # an integer times a number would be float32
            itself = ref_emb is None or (ref_labels is labels and len(ref_emb) == len(embeddings))
            if listed is not None:
                listed = _without(listed, absent, itself)
            if labels is not None:
                labels = without_samples(labels, absent)
            if ref_emb is not None and itself:
                ref_labels = labels
        sides = (embeddings, labels, ref_emb, ref_labels)
        return PairInputs(sides, listed, weights, present, False, sharded, self._ids(inputs), self._observation)

    def _ids(self, inputs: LossInputs) -> tuple[Tensor | None, Tensor | None]:
        """Checked ids of anchors and of candidates, (n, 1) and (m, 1); None: those of the anchors, or none at all."""
        ids, ref_ids, ref_emb, shards = inputs.sample_ids, inputs.ref_ids, inputs.ref_emb, self.shards
        if ids is None and ref_ids is None:
            return None, None
        if inputs.indices_tuple is not None:
            raise ValueError("sample_ids beside indices_tuple, which lists the pairs themselves: leave one out")
        if ref_emb is None or inputs.ref_labels is None or inputs.ref_labels is inputs.labels:
            if ref_ids is not None:
                raise ValueError("ref_ids, and the candidates are the samples, whose ids are sample_ids: leave it out")
            own = check_ids("sample_ids", ids, inputs.embeddings, "embeddings")
            return own, None if ref_emb is None else own
        if ids is None or ref_ids is None:
            missing = "sample_ids" if ids is None else "ref_ids"
            raise ValueError(f"{missing} is missing: the ids of samples and of the rows of ref_emb are compared")
        if shards.is_sharded(ref_emb):
            ref_emb, ref_ids = shards.local_shard(ref_emb), shards.local_shard(ref_ids)
        own = check_ids("sample_ids", ids, inputs.embeddings, "embeddings")
        return own, check_ids("ref_ids", ref_ids, ref_emb, "ref_emb")

    def _sample_losses(self, inputs: PairInputs) -> Tensor:
        """Losses of the anchors, (B,)."""
        raise NotImplementedError

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        checked = self._checked(inputs)
        return {"loss": of_each(checked.weighted(self._sample_losses(checked)), checked.weights)}

    def _in_one_sweep(self, inputs: PairInputs) -> bool:
        """Whether the factor of each sample's loss is known before the sweep and needs no gradient."""
        known = inputs.weights is None or not (inputs.weights.requires_grad and torch.is_grad_enabled())
        return self.reduction == "mean" and known and inputs.listed is None


def _of_tensors(loss: PairFamilyLoss, *tensors: Any) -> Tensor:
    """The loss of the tensors of a signature, by the general way."""
    embeddings, ref_emb, _, _, labels, ref_labels, weights, *ids, _ = tensors
    return loss._general_loss(LossInputs(embeddings, labels, None, ref_emb, ref_labels, weights, None, None, *ids))


def _without(listed: ListedPairs, absent: Tensor, itself: bool) -> ListedPairs:
    """The pairs of samples that are present; of a reference set all rows are."""
    present = []
    for anchors, others in (listed[:2], listed[2:]):
        both = ~absent[anchors]
        if itself:
            both &= ~absent[others]
        present += [anchors[both], others[both]]
    return ListedPairs(*present)
