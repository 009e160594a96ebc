"""Softmax losses over classes: a sample's log-sum-exp of all logits, less the logit of its own class, or classes."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.plan import Plan
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.losses.families.class_matrix import ClassMatrixLoss
from robustdml_ops.losses.inputs import LossInputs, SoftmaxOptions, reduce_samples
from robustdml_ops.losses.peer.listed_pairs import miner_weights
from robustdml_ops.losses.peer.package import SubLosses, of_each
from robustdml_ops.ops import ABSENT, ClassLSE, class_lse
from robustdml_ops.ops.classes.gpu_plan import class_gpu_plan
from robustdml_ops.ops.classes.plan import ClassFormula, class_plan


class ClassFamilyLoss(ClassMatrixLoss):
    """One loss per sample, ℓ_i = log Σ_k exp(logit_ik) − logit_iy; a subclass has the class matrix and the logits."""

    known_options = SoftmaxOptions
    weighs_losses = True
    miner_weighs_anchors: ClassVar[bool] = False  # a miner's weights count a sample as an anchor only

    def __init__(self, num_classes: int, embedding_size: int, **options: Unpack[SoftmaxOptions]) -> None:
        self.negative_correction = options.pop("negative_correction", True)
        super().__init__(num_classes, embedding_size, **options)

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        embeddings, matrix, labels, _, _, weights, margins, _ = tensors
        formula = self._formula()
        if formula is None or margins is not None or not self._is_plain(tensors):
            return None
        kept = copy.copy(self)
        kept.__dict__["_plans"] = None
        given = (formula, embeddings, matrix, labels, weights)
        general: Any = partial(_of_tensors, kept)
        centers, columns, backend = self.centers or 1, self.columns, self.backend
        plan = class_plan(*given, columns=columns, centers=centers, backend=backend, general=general)
        return plan or class_gpu_plan(*given, columns=columns, backend=backend)

    def _formula(self) -> ClassFormula | None:
        """The loss of a sample as a planned step has it; None where it is another."""
        return None

    def _backward_check(self) -> Callable[[Tensor], None] | None:
        update = self._update()
        return None if update is None else partial(_check_backward, update, update.version())

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        return reduce_samples(self._sample_losses(inputs), inputs.sample_weights, self.reduction)

    def _sample_losses(self, inputs: LossInputs) -> Tensor:
        """ℓ (B,), times a miner's weights."""
        classes = self._checked_labels(inputs)
        labels, sums = classes.labels, self._class_sums(inputs.embeddings, classes.labels)
        if labels.dim() == 1:
            losses = self._losses_of_sums(sums, inputs, labels)
        else:
            absent = labels == ABSENT
            of_label = ClassLSE(sums.lse[:, None], sums.target.masked_fill(absent, 0))
            # Where a sample has no class and no negative is left, the log-sum-exp is −∞.
            each = self._losses_of_sums(of_label, inputs, labels).masked_fill(absent, 0)
            losses = (classes.shares(sums.lse.dtype) * each).sum(1)
        if inputs.indices_tuple is None:
            return losses
        listed, anchors_only = inputs.indices_tuple, self.miner_weighs_anchors
        return losses * miner_weights(listed, len(losses), losses, anchors_only, self.shards)

    def _class_sums(self, embeddings: Tensor, labels: Tensor) -> ClassLSE:
        """Sums over the classes of the step; the correction raises a drawn class's logit by log(its weight)."""
        rows, bias, settings = self._step_rows(embeddings, labels), None, self._logit_settings()
        if rows.drawn is not None and self.negative_correction:
            bias = rows.drawn.weights(compute_dtype(embeddings, rows.matrix)).log()
        sums = class_lse(
            embeddings,
            rows.matrix,
            rows.labels,
            bias=bias,
            drop_similar_negatives=self._similarity_limits(embeddings, rows, settings.get("gamma")),
            elsewhere=self.shards.divided,
            backend=self.backend,
            update=rows.update,
            **settings,
        )
        return ClassLSE(*self.shards.join_log_sum_exp(*sums, labels))

    def _logit_settings(self) -> dict[str, Any]:
        """Settings of :func:`~robustdml_ops.ops.class_lse` that turn similarities into logits."""
        raise NotImplementedError

    def _losses_of_sums(self, sums: ClassLSE, inputs: LossInputs, labels: Tensor) -> Tensor:
        """ℓ (B,) for labels (B,); for labels (B, K) that of each, from log-sum-exps (B, 1), anything where ABSENT."""
        return sums.lse - sums.target

    def loss_at(self, cosine: float) -> float:
        """The loss of a sample with this cosine to its own class, and 0 to all others."""
        settings = self._logit_settings()
        number: Any = {"dtype": torch.float64, "device": "cpu"}
        target = torch.tensor([settings["scale"] * cosine + settings.get("target_bias", 0)], **number)
        others = torch.full_like(target, math.log(max(1, self.num_classes - 1)))
        lse = others if settings.get("exclude_target") else torch.logaddexp(others, target)
        inputs = LossInputs(torch.zeros(1, self.embedding_size, **number), None)
        return float(
            self._losses_of_sums(ClassLSE(lse, target), inputs, torch.zeros(1, dtype=torch.int64, device="cpu"))
        )

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        losses, weights = self._sample_losses(inputs), inputs.sample_weights
        weights = None if weights is None else weights.to(losses.device)
        return {"loss": of_each(reduce_samples(losses, weights, "none"), weights)}


class CentersLoss(ClassFamilyLoss):
    """The class matrix is (D, C·H), H columns a class; on shards (C, H, D), whose rows do not cut classes apart."""

    columns = True
    centers: int

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension of ``by_class`` that counts the classes."""
        return {**super().class_dimensions(), self.matrix_name: 0}

    def by_class(self, _: str, centers: Tensor) -> Tensor:
        """The class matrix, (D, C·H) or (C, H, D), as (C, H, D); what has one entry a class stays."""
        return centers if centers.dim() != 2 else centers.t().reshape(-1, self.centers, len(centers))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Take centres by class, as several processes save them, also on one process."""
        saved = state_dict.get(prefix + self.matrix_name)
        if saved is not None and saved.dim() == 3 and self._class_parameter().dim() == 2:
            state_dict = {**state_dict, prefix + self.matrix_name: saved.flatten(0, 1).t()}
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _check_backward(update: ProxyUpdate, version: int, upstream: Tensor) -> None:
    """Raise where the sweep of backward can't take its step; it would take a loss scaler's factor for a gradient's."""
    if upstream.dim() == 0:
        update.check_factor(upstream)
    update.check_version(version)
    update.check_ready()


def _of_tensors(loss: ClassFamilyLoss, *tensors: Any) -> Tensor:
    """The loss of the tensors of a plan, the class matrix among them, by the general way."""
    embeddings, matrix, labels, _, _, weights, *_ = tensors
    loss.__dict__["_parameters"] = {loss.matrix_name: matrix}
    return loss._fused_loss(LossInputs(embeddings, labels, sample_weights=weights))
