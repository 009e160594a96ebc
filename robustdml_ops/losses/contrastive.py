"""Contrastive loss, Hadsell et al. 2006."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Never

from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.engine.validation import check_finite_numbers
from robustdml_ops.losses.families.pairs import PairFamilyLoss, PairInputs
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, LossOptions, Reduction, shared
from robustdml_ops.losses.peer.listed_pairs import listed_hinge
from robustdml_ops.losses.peer.package import SubLosses, peer_reducers, reducer_of
from robustdml_ops.ops import PairHinge, pair_hinge, pair_hinge_sum
from robustdml_ops.ops.pairs import hinge_options
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.formula import PairFormula


class ContrastiveLoss(PairFamilyLoss):
    """Contrastive loss: a mean over the pairs that are still wrong, positives and negatives apart.

        L = 1/|A⁺| Σ_{(i,p)} [d_ip − m⁺]₊ + 1/|A⁻| Σ_{(i,n)} [m⁻ − d_in]₊      A: the pairs whose hinge is above 0

    With ``distance="cosine"`` the hinges are [m⁺ − s]₊ and [s − m⁻]₊. The candidates of a sample are the others of the
    batch or, where they are given, the rows of ``ref_emb`` instead.

    A is known only after the whole batch: unless this is one chunk, the gradient takes a second sweep, 8·B·m·D flops;
    of one chunk a second reading of its cosines, which Triton multiplies anew for distances.
    Equal vectors have distance 0; for near ones see :func:`~robustdml_ops.ops.pair_hinge`.

    Source: Hadsell, Chopra, LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", CVPR 2006, without the
    squares.

    Parameters
    ----------
    pos_margin, neg_margin : float
        Margins m⁺ and m⁻: positives farther apart than m⁺ and negatives nearer than m⁻ cost. The defaults are for
        distances; with cosines, 1 and 0.5 are usual.
    distance : {"euclidean", "cosine", "squared"} or a distance of pytorch-metric-learning
        What the margins are compared with: the distance of unit vectors, √(2 − 2s), the cosine s, or the squared
        distance; see docs/compatibility.md for the objects.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: (). ``"none"``: (B,), ℓ_i = B·(Σ_p [d_ip − m⁺]₊/|A⁺| + Σ_n [m⁻ − d_in]₊/|A⁻|), whose mean is L.
        ``"sum"``: the sum of what ``"none"`` gives.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.
    ignore_index : int, optional
        Samples with this label are absent, as samples of weight 0 are; on pairs rows of ``ref_emb``, too.
    reducer : object, optional
        A reducer of pytorch-metric-learning; see docs/compatibility.md.
    embedding_regularizer : object, optional
        A regulariser of pytorch-metric-learning, of the embeddings.
    embedding_reg_weight : float
        Weight of ``embedding_regularizer``. Default 1.0.
    collect_stats : bool, optional
        Whether pytorch-metric-learning's distance and reducer keep their statistics.
    **unknown
        Refused, with the name that was probably meant.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ContrastiveLoss
    >>> X, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1])
    >>> ContrastiveLoss(pos_margin=1, neg_margin=0.5, distance="cosine")(X, y)  # 1 + (0.1 + 0.3 + 0.1 + 0.3)/4
    tensor(1.2000)
    """

    served_forms = ("euclidean", "cosine", "squared")
    default_form = "euclidean"
    default_reducer = "AvgNonZeroReducer"
    parts = ("pos_loss", "neg_loss")
    recordable = shown = ("pos_margin", "neg_margin")

    def __init__(
        self,
        pos_margin: float = 0,
        neg_margin: float = 1,
        *,
        distance: Any = None,
        reduction: Reduction = "mean",
        backend: Backend | None = None,
        ignore_index: int | None = None,
        reducer: Any = None,
        embedding_regularizer: Any = None,
        embedding_reg_weight: float = 1.0,
        collect_stats: bool | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__(**shared(LossOptions, locals()))
        check_finite_numbers(pos_margin=pos_margin, neg_margin=neg_margin)
        self.pos_margin, self.neg_margin = pos_margin, neg_margin

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        checked, shards = self._own_anchors(self._checked(inputs)), self.shards
        plain = checked.weights is None and self.reduction == "mean"
        if plain and checked.listed is None and not shards.divided:
            settings, scale = self._settings()
            embeddings, _, candidates, _ = checked.pairs
            one = embeddings.new_ones((), dtype=pair_dtype(embeddings, candidates))
            settings |= {**checked.of_sets(), "average": True, "backend": self.backend}
            total: Tensor = pair_hinge_sum(*checked.pairs, one, one, **settings)
            return total if scale == 1 else scale * total
        hinge = self._hinge(checked)
        found = [
            shards.sum_over_processes(count.sum()).clamp(min=1)
            for count in (hinge.positive_count, hinge.negative_count)
        ]
        if plain:
            return shards.sum_terms(hinge.positive.sum() / found[0] + hinge.negative.sum() / found[1])
        # Integers divided by integers would be float32, whatever the hinges are.
        losses = hinge.positive * checked.present / found[0] + hinge.negative * checked.present / found[1]
        return self._mean(shards.sum_terms(losses) if checked.sharded else losses, checked)

    def _formula(self, tensors: Sequence[Any]) -> PairFormula:
        settings, scale = self._settings()
        return PairFormula(hinge_options(**settings), "terms", (1 / scale, 1 / scale))

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        reducers = [reducer_of(self.reducer, name) for name in self.parts]
        thresholds = [threshold_of(reducer) for reducer in reducers]
        for reducer, threshold in zip(reducers, thresholds, strict=True):
            if threshold is None:
                argument = f"reducer={type(reducer).__name__}"
                if inputs.sample_weights is not None:
                    raise ValueError(f"sample_weights are of the fused sums, and {argument} of none of them")
                return self._dense(inputs, argument)
        checked = self._checked(inputs)
        hinge = self._hinge(checked, *(threshold or 0.0 for threshold in thresholds))
        return reduced_hinges(reducers, hinge, checked, inputs.labels)

    def _settings(self, positive_above: float = 0.0, negative_above: float = 0.0) -> tuple[dict[str, Any], float]:
        """Margins of the fused hinges, and what their sums are to be multiplied by."""
        form, scale = self._form(), 1.0
        sign = -1 if form == "cosine" else 1  # a similarity falls where a distance grows
        margins = (self.pos_margin + sign * positive_above, self.neg_margin - sign * negative_above)
        if form == "squared":
            # d² − m = 2((1 − m/2) − s): a hinge of cosines, twice.
            form, scale = "cosine", 2.0
            margins = (1 - margins[0] / 2, 1 - margins[1] / 2)
        settings: dict[str, Any] = {
            "positive_margin": margins[0],
            "negative_margin": margins[1],
            "positive_offset": positive_above / scale,
            "negative_offset": negative_above / scale,
            "distance": form,
        }
        return settings, scale

    def _hinge(self, inputs: PairInputs, positive_above: float = 0.0, negative_above: float = 0.0) -> PairHinge:
        """Sums of the losses of pairs that exceed a threshold."""
        settings, scale = self._settings(positive_above, negative_above)
        if inputs.listed is None:
            of_labels: dict[str, Any] = {**settings, **inputs.of_sets(), "backend": self.backend}
            hinge = pair_hinge(*inputs.pairs, **of_labels)
        else:
            hinge = listed_hinge(inputs.cosines(), **settings)
        if scale != 1:
            positive, negative, *counts = hinge
            hinge = PairHinge(scale * positive, scale * negative, *counts)
        return hinge


def threshold_of(reducer: Any) -> float | None:
    """The loss above which the reducer counts a pair, 0 by default; None: no fused sum serves the reducer."""
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
        loss = _reduced(reducer, inputs.weighted(sums), above, number, labels)
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
