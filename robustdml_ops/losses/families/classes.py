"""Softmax losses over classes: a sample's log-sum-exp of all logits, less the logit of its own class, or classes."""

import copy
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import Unpack

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.plan import Plan
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.engine.validation import check_elements, check_finite_numbers, check_vector
from robustdml_ops.losses.families.class_matrix import ClassMatrixLoss
from robustdml_ops.losses.inputs import LossInputs, reduce_samples
from robustdml_ops.losses.options import SoftmaxOptions
from robustdml_ops.losses.peer.listed_pairs import miner_weights
from robustdml_ops.losses.peer.package import SubLosses, of_each
from robustdml_ops.ops import ABSENT, class_lse
from robustdml_ops.ops.classes.gpu_plan import class_gpu_plan
from robustdml_ops.ops.classes.plan import ClassFormula, class_plan
from robustdml_ops.ops.classes.sweep import ClassSeen


class ClassTerms(NamedTuple):
    """Sums over the classes from which the loss of a sample follows."""

    lse: Tensor  # (B,) log-sum-exp of the classes
    target: Tensor  # (B,) or (B, K) logits of the labels
    weighted: Tensor | None = None  # (B,) ε/C Σ_k w_k logit_k over the other classes, with label smoothing


class ClassFamilyLoss(ClassMatrixLoss):
    """One loss per sample, ℓ_i = log Σ_k exp(logit_ik) − logit_iy; a subclass has the class matrix and the logits."""

    known_options = SoftmaxOptions
    weighs_losses = observable = True
    miner_weighs_anchors: ClassVar[bool] = False  # a miner's weights count a sample as an anchor only

    def __init__(self, num_classes: int, embedding_size: int, **options: Unpack[SoftmaxOptions]) -> None:
        self.negative_correction = options.pop("negative_correction", True)
        label_smoothing, weight = options.pop("label_smoothing", 0.0), options.pop("weight", None)
        super().__init__(num_classes, embedding_size, **options)
        check_finite_numbers(label_smoothing=label_smoothing)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in [0, 1], got {label_smoothing}")
        self.label_smoothing = label_smoothing
        if label_smoothing:
            self._refuse_dense("label_smoothing")
            for name in ("negatives", "drop_similar_negatives"):
                if getattr(self, name) is not None:
                    other = "negative_share" if name == "negatives" else name
                    raise ValueError(f"label_smoothing is over all classes, and {other} leaves some out: leave one out")
        if weight is not None:
            self._set_weight(weight)

    def _set_weight(self, weight: Tensor) -> None:
        """Keep the weights of the classes (C,)."""
        self._refuse_dense("weight")
        check_vector("weight", weight, self.num_classes)
        wanted = ": weights of classes must be finite and not negative"
        check_elements("weight", weight, lambda values: (values >= 0) & (values < torch.inf), wanted)
        if weight.requires_grad:
            raise ValueError("weight requires a gradient, and weights of classes have none: pass weight.detach()")
        self.unseen_class = {**getattr(self, "unseen_class", {}), "weight": 1.0}  # of classes that grow_classes adds
        self.register_buffer("weight", weight.detach().clone())

    def class_dimensions(self) -> dict[str, int]:
        """Parameters and buffers with entries for each class, and the dimension that counts the classes."""
        return {**super().class_dimensions(), **({} if self._class_weights() is None else {"weight": 0})}

    def _class_weights(self) -> Tensor | None:
        """The weights of the classes, (C,) or a DTensor of them."""
        return self._buffers.get("weight")

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        embeddings, matrix, labels, _, _, weights, margins, _ = tensors
        formula = self._formula(margins)
        others = self.label_smoothing or self._class_weights() is not None
        if formula is None or others or not self._is_plain(tensors):
            return None
        kept = copy.copy(self)
        kept.__dict__["_plans"] = None
        given = (formula, embeddings, matrix, labels, weights, margins)
        general: Any = partial(_of_tensors, kept, formula.class_margins)
        centers, columns, backend = self.centers or 1, self.columns, self.backend
        plan = class_plan(*given, columns=columns, centers=centers, backend=backend, general=general)
        return plan or class_gpu_plan(*given, columns=columns, backend=backend, general=general)

    def _formula(self, margins: Tensor | None) -> ClassFormula | None:
        """The loss of a sample as a planned step with these ``margins`` has it; None where it is another."""
        return None

    def _backward_check(self) -> Callable[[Tensor], None] | None:
        update = self._update()
        return None if update is None else partial(_check_backward, update, update.version())

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        losses, counts = self._sample_losses(inputs)
        return reduce_samples(losses, inputs.sample_weights, self.reduction, counts)

    def _sample_losses(self, inputs: LossInputs) -> tuple[Tensor, Tensor | None]:
        """ℓ (B,), times a miner's weights; and as how many samples each counts in a mean, None: as one."""
        classes = self._checked_labels(inputs)
        labels = classes.labels
        self._take_first(inputs.embeddings, labels, inputs.sample_weights)
        sums = self._class_sums(inputs.embeddings, labels)
        weights = self._at_labels("weight", labels) if self._class_weights() is not None else None
        if labels.dim() == 1:
            own = self._own_logits(sums, inputs, labels)
            losses = self._losses_of_sums(sums, own)
            smooth = None if sums.weighted is None else self._smoothing(sums.weighted, losses + own, own, weights)
            losses = losses if weights is None else weights.to(losses.dtype) * losses
        else:
            absent = labels == ABSENT
            of_label = sums._replace(lse=sums.lse[:, None], target=sums.target.masked_fill(absent, 0))
            own = self._own_logits(of_label, inputs, labels).masked_fill(absent, -torch.inf)
            # Where a sample has no class and no negative is left, the log-sum-exp is −∞.
            each = self._losses_of_sums(of_label, own).masked_fill(absent, 0)
            smooth = None
            if sums.weighted is not None:
                whole, known = (each + own).amax(1), own.masked_fill(absent, 0)
                smooth = self._smoothing(sums.weighted, whole, known, weights).masked_fill(absent.all(1), 0)
            shares = classes.shares(sums.lse.dtype)
            losses = ((shares if weights is None else weights.to(shares.dtype) * shares) * each).sum(1)
            weights = None  # as F.cross_entropy with probabilities, whose mean is over samples
        if smooth is not None:
            losses = (1 - self.label_smoothing) * losses + smooth
        if inputs.indices_tuple is not None:
            listed, anchors_only = inputs.indices_tuple, self.miner_weighs_anchors
            losses = losses * miner_weights(listed, len(losses), losses, anchors_only, self.shards)
        return losses, weights

    def _smoothing(self, weighted: Tensor, lse: Tensor, own: Tensor, weights: Tensor | None) -> Tensor:
        """ε/C Σ_k w_k (lse − logit_k), (B,), of the labels' logits ``own``, (B,) or (B, K), and those of the others."""
        all_weights = self._class_weights()
        total: Tensor | int = self.num_classes
        if all_weights is not None:
            total = self.shards.sum_terms(self.shards.local_shard(all_weights).to(own.dtype).sum())
        of_labels = own if weights is None else weights.to(own.dtype) * own
        of_labels = of_labels if own.dim() == 1 else of_labels.sum(1)
        return self.label_smoothing / self.num_classes * (total * lse - of_labels) - weighted

    def _at_labels(self, name: str, labels: Tensor) -> Tensor:
        """Values of the buffer or parameter ``name`` at the labels, in their shape; of any class where ABSENT."""
        known = labels.masked_fill(labels == ABSENT, 0).flatten()
        values = self.shards.local_at_labels(self.shards.local_shard(getattr(self, name)), known)
        return self.shards.sum_terms(values).view(labels.shape)

    def _class_sums(self, embeddings: Tensor, labels: Tensor) -> ClassTerms:
        """Sums over the classes of the step; the correction raises a drawn class's logit by log(its weight)."""
        rows, bias, settings = self._step_rows(embeddings, labels), None, self._logit_settings()
        if rows.drawn is not None and self.negative_correction:
            bias = rows.drawn.weights(compute_dtype(embeddings, rows.matrix)).log()
        seen = None
        if self._observation is not None:
            own = self._own_similarity(embeddings, rows, settings.get("gamma"))
            seen = ClassSeen.of(own.to(compute_dtype(embeddings, rows.matrix)))
        sums = class_lse(
            embeddings,
            rows.matrix,
            rows.labels,
            bias=bias,
            logit_weights=self._logit_weights(rows.matrix),
            drop_similar_negatives=self._similarity_limits(embeddings, rows, settings.get("gamma")),
            elsewhere=self.shards.divided,
            backend=self.backend,
            update=rows.update,
            seen=seen,
            **settings,
        )
        target, weighted = sums.target, None
        if self.label_smoothing:
            target, weighted = target[:, :-1].reshape(labels.shape), self.shards.sum_terms(target[:, -1])
        terms = ClassTerms(*self.shards.join_log_sum_exp(sums.lse, target, labels), weighted)
        if seen is not None:
            self._observe(terms, labels, seen)
        return terms

    def _observe(self, terms: ClassTerms, labels: Tensor, seen: ClassSeen) -> None:
        """Fill the observation with what a step of these terms has seen; see :class:`Observation`."""
        settings, here = self._logit_settings(), self.shards.own_slice()
        bias = settings.get("target_bias", 0.0)
        lse, target = terms.lse.detach(), terms.target.detach().masked_fill(labels == ABSENT, -torch.inf)
        target = target[:, None] if target.dim() == 1 else target
        own, of_labels = target.amax(1), target.logsumexp(1)
        # e^(others − labels), without the margin.
        if settings.get("exclude_target"):
            odds = (lse - of_labels).exp()
        else:
            odds = (lse - of_labels).expm1().clamp(min=0) * math.exp(bias)
        probability = (own - of_labels).exp() / (1 + odds)
        nearest, above = -self.shards.min_over_processes(-seen.nearest), self.shards.sum_over_processes(seen.above)
        margin = (own - bias) / settings["scale"] - nearest
        # Where products round, the own similarity of the sweep is not the very one that others were compared with.
        rank = 1 + torch.where(margin >= 0, 0, above.clamp(min=1)).long()
        none = own == -torch.inf
        observation: Any = self._observation
        observation.probability = probability.masked_fill(none, torch.nan)[here]
        observation.margin, observation.rank = (
            margin.masked_fill(none, torch.nan)[here],
            rank.masked_fill(none, 0)[here],
        )

    def _logit_weights(self, matrix: Tensor) -> Tensor | None:
        """ε/C w_k of the classes here, for label smoothing."""
        if not self.label_smoothing:
            return None
        share, weights = self.label_smoothing / self.num_classes, self._class_weights()
        if weights is None:
            return matrix.new_full((len(matrix),), share, dtype=torch.promote_types(matrix.dtype, torch.float32))
        return share * self.shards.local_shard(weights)

    def _logit_settings(self) -> dict[str, Any]:
        """Settings of :func:`~robustdml_ops.ops.class_lse` that turn similarities into logits."""
        raise NotImplementedError

    def _own_logits(self, sums: ClassTerms, inputs: LossInputs, labels: Tensor) -> Tensor:
        """Logits of the labels, with their margins, in the shape of ``labels``; anything where ABSENT."""
        return sums.target

    def _losses_of_sums(self, sums: ClassTerms, own: Tensor) -> Tensor:
        """ℓ (B,) for logits of labels (B,); for (B, K), −∞ where ABSENT, that of each, from log-sum-exps (B, 1)."""
        return sums.lse - own

    def loss_at(self, cosine: float) -> float:
        """The loss of a sample with this cosine to its own class, and 0 to all others."""
        settings = self._logit_settings()
        number: Any = {"dtype": torch.float64, "device": "cpu"}
        target = torch.tensor([settings["scale"] * cosine + settings.get("target_bias", 0)], **number)
        others = torch.full_like(target, math.log(max(1, self.num_classes - 1)))
        lse = others if settings.get("exclude_target") else torch.logaddexp(others, target)
        inputs = LossInputs(torch.zeros(1, self.embedding_size, **number), None)
        sums, labels = ClassTerms(lse, target), torch.zeros(1, dtype=torch.int64, device="cpu")
        own = self._own_logits(sums, inputs, labels)
        loss, epsilon = self._losses_of_sums(sums, own), self.label_smoothing
        return float((1 - epsilon) * loss + epsilon * (loss + own) - epsilon / self.num_classes * own)

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        (losses, counts), weights = self._sample_losses(inputs), inputs.sample_weights
        if counts is not None:  # of a reducer, which takes a plain mean
            present = counts if weights is None else counts * (weights > 0)
            number = len(counts) if weights is None else (weights > 0).sum()
            losses = losses * (number / torch.where(present.sum() > 0, present.sum(), 1))
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


def _of_tensors(loss: ClassFamilyLoss, class_margins: bool, *tensors: Any) -> Tensor:
    """The loss of the tensors of a plan, the class matrix among them, by the general way."""
    embeddings, matrix, labels, _, _, weights, margins, _ = tensors
    parameters = {loss.matrix_name: matrix}
    if class_margins:
        parameters["margin"], margins = margins, None
    loss.__dict__["_parameters"] = parameters
    return loss._fused_loss(LossInputs(embeddings, labels, sample_weights=weights, margins=margins))
