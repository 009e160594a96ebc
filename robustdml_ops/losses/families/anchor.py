"""Losses of the Proxy-Anchor family: for each proxy two log-sum-exps over the batch."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.labels import ABSENT, ELSEWHERE, LabelSets
from robustdml_ops.engine.proxy_update import refuse_update
from robustdml_ops.engine.validation import check_finite_numbers, check_positive, check_sample_weights
from robustdml_ops.losses.families.class_matrix import ClassMatrixLoss, StepRows
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import ClassMatrixOptions
from robustdml_ops.losses.peer.listed_pairs import miner_weights
from robustdml_ops.losses.peer.package import SubLosses, of_each
from robustdml_ops.ops import AnchorBiases, AnchorLSE, anchor_loss, anchor_lse, similarity
from robustdml_ops.ops.anchor.backends import ConfidenceSets


class AnchorTerms(NamedTuple):
    """Arguments of the anchor ops."""

    rows: StepRows
    sets: LabelSets | ConfidenceSets
    biases: AnchorBiases
    positive_count: Tensor | int  # () |P⁺|
    negative_count: Tensor | int  # () |P⁻|


class AnchorFamilyLoss(ClassMatrixLoss):
    """Σ_p positive_p/|P⁺| + negative_p/|P⁻| with the constant margin of Proxy-Anchor; others have other terms."""

    default_reducer = "DivisorReducer"
    parts: tuple[str, ...] = ("pos_loss", "neg_loss")
    recordable = ("num_classes", "alpha", "margin")
    shown = (*ClassMatrixLoss.shown, "alpha")
    proxies: nn.Parameter

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32,
        **options: Unpack[ClassMatrixOptions],
    ) -> None:
        check_finite_numbers(margin=margin)
        check_positive(alpha=alpha)
        super().__init__(num_classes, embedding_size, **options)
        self.margin, self.alpha = margin, alpha
        self._add_class_matrix(num_classes)

    def get_default_weight_init_func(self) -> Any:
        """As in the authors' code: the scale does not matter to the cosine, but to the optimiser's first steps."""
        return partial(nn.init.kaiming_normal_, mode="fan_out")

    def _check_shapes(self, inputs: LossInputs) -> None:
        """Raise also where the optimiser's last step has not ended, before the forward draws or sends anything."""
        super()._check_shapes(inputs)
        if (update := self._update()) is not None:
            update.check_ready()

    def _backward_check(self) -> Callable[[Tensor], None] | None:
        update = self._update() if self.shards.divided else None  # one process asks in the backward of its sweep
        return None if update is None else update.check_confirm

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        return self._loss_of_anchors(inputs.embeddings, self._anchor_arguments(inputs))

    def _anchor_arguments(self, inputs: LossInputs) -> AnchorTerms:
        labels, label_weights = self._checked_labels(inputs)
        if label_weights is not None:
            if label_weights.requires_grad:
                raise ValueError(
                    f"label_weights require a gradient, and are constants of {type(self).__name__}: pass "
                    "label_weights.detach()"
                )
            labels = labels.masked_fill(label_weights == 0, ABSENT)
        log_weights, present = self._log_weights(inputs)
        self._take_first(inputs.embeddings, labels, inputs.sample_weights)
        rows = self._step_rows(inputs.embeddings, labels)
        if labels.dim() == 2:  # whose range is checked; ABSENT is below ELSEWHERE
            labels, places = labels.clamp(min=ELSEWHERE), rows.labels.clamp(min=ELSEWHERE)
            sets = LabelSets.of(places, elsewhere=True, weights=label_weights)
        else:
            sets = LabelSets.of(rows.labels, elsewhere=self.shards.divided)
        count = (LabelSets.of(labels) if self.shards.divided else sets).count(present, log_weights.dtype)
        return AnchorTerms(rows, sets, self._biases(labels, log_weights, rows), count, self.num_classes)

    def _log_weights(self, inputs: LossInputs) -> tuple[Tensor, Tensor | None]:
        """Log-weights (B,) in the compute type, and which samples are present (None: all)."""
        embeddings = inputs.embeddings
        logs = embeddings.new_full((len(embeddings),), self._bias(), dtype=compute_dtype(embeddings, self.proxies))
        if inputs.indices_tuple is not None:
            # The peer adds w − 1 to the exponents.
            logs = logs + (miner_weights(inputs.indices_tuple, len(logs), logs, shards=self.shards) - 1)
        if inputs.sample_weights is None:
            return logs, None
        weights = check_sample_weights(inputs.sample_weights, logs)
        present = weights > 0
        return (logs + weights.masked_fill(~present, 1).log()).masked_fill(~present, -torch.inf), present

    def _bias(self) -> float:
        """The constant part of the exponents' bias."""
        return self.alpha * self.margin

    def _biases(self, labels: Tensor, log_weights: Tensor, rows: StepRows) -> AnchorBiases:
        return AnchorBiases(log_weights, log_weights)

    def _loss_of_anchors(self, embeddings: Tensor, terms: AnchorTerms) -> Tensor:
        """The loss, () or (C,). An empty set's sum is 0."""
        rows, sets, biases, *counts = terms
        scales = [_reciprocal(count, biases.positive) for count in counts]
        if self.reduction == "none":
            lse = self._anchor_sums(embeddings, terms)
            return lse.positive * scales[0] + lse.negative * scales[1]
        if rows.drawn is not None:
            scales[1] = scales[1] * rows.drawn.weights(scales[1].dtype)
        exponents = self._exponents(embeddings, rows)
        loss = anchor_loss(embeddings, rows.matrix, sets, biases, *scales, **exponents, update=rows.update)
        return self.shards.sum_terms(loss)

    def _exponents(self, embeddings: Tensor, rows: StepRows) -> dict[str, Any]:
        """Settings of both anchor ops."""
        limit = self._similarity_limits(embeddings, rows)
        return {"alpha": self.alpha, "drop_similar_negatives": limit, "backend": self.backend}

    def _anchor_sums(self, embeddings: Tensor, terms: AnchorTerms) -> AnchorLSE:
        """Log-sum-exps of all proxies here, (C,) each: a drawn one stands for several, those not drawn have 0."""
        what = "a loss of the Proxy-Anchor family with reduction='none', or with a reducer of its own,"
        way_out = "take reduction='mean', or train the proxies with an optimiser of torch.optim"
        rows = terms.rows
        refuse_update(rows.update, what, way_out)
        lse = anchor_lse(embeddings, rows.matrix, terms.sets, terms.biases, **self._exponents(embeddings, rows))
        if rows.drawn is None:
            return lse
        zeros = lse.positive.new_zeros(len(self._class_matrix()))
        each = (lse.positive, lse.negative * rows.drawn.weights(zeros.dtype))
        return AnchorLSE(*(zeros.index_copy(0, rows.drawn.classes, values) for values in each))

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        terms = self._anchor_arguments(inputs)
        lse = self._anchor_sums(inputs.embeddings, terms)
        return {
            "pos_loss": of_each(lse.positive, divisor=terms.positive_count),
            "neg_loss": of_each(lse.negative, divisor=terms.negative_count),
        }

    def _logits(self, embeddings: Tensor) -> Tensor:
        return similarity(embeddings, self.proxies)


def _reciprocal(count: Tensor | int, like: Tensor) -> Tensor:
    """1/count, () in the type of ``like``; 1 for a count of 0."""
    if isinstance(count, Tensor):
        if count.is_floating_point():  # at least 1
            return count.reciprocal()
        return count.clamp(min=1).to(like.dtype).reciprocal()
    return like.new_full((), 1 / max(1, count))
