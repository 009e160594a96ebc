"""Losses of a softmax over candidates: those of a batch, or the rows of another matrix, with a learnt temperature."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.engine.plan import Plan
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.validation import (
    check_finite_embeddings,
    check_matrix,
    check_positive,
    check_same_device,
    check_sample_weights,
    require,
)
from robustdml_ops.losses.families.metric_loss import ShardableLoss
from robustdml_ops.losses.families.pairs import PairFamilyLoss, PairInputs
from robustdml_ops.losses.inputs import LossInputs, own_samples
from robustdml_ops.losses.options import Backend, LossOptions
from robustdml_ops.ops.pairs import PairContrast, coefficients_of, pair_contrast
from robustdml_ops.ops.pairs.arguments import check_ids
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.formula import PairFormula
from robustdml_ops.ops.pairs.gpu_plan import pair_gpu_plan
from robustdml_ops.ops.pairs.plan import pair_plan


class ContrastFamilyLoss(PairFamilyLoss):
    """Logits are cosines over a temperature; a subclass has the ``form`` of the contrast and the mean."""

    served_forms = ("cosine", "squared")
    recordable: ClassVar[tuple[str, ...]] = ("temperature",)
    shown: ClassVar[tuple[str, ...]] = recordable
    form = "each"

    def __init__(self, temperature: float, **options: Unpack[LossOptions]) -> None:
        super().__init__(**options)
        check_positive(temperature=temperature)
        self.temperature = temperature

    def _refuse(self, inputs: LossInputs) -> None:
        self._refuse_divided_bank(inputs, f"{type(self).__name__} compares with a whole bank")

    def _scale(self) -> float:
        """Factor of the cosines; with squared distances −d²/τ = 2(s − 1)/τ, of which the constant cancels."""
        return (2 if self._form() == "squared" else 1) / self.temperature

    def _contrast(self, inputs: PairInputs, summed: bool = False) -> PairContrast:
        """Losses of the samples of this process; ``summed``: Σ weight · loss, in one sweep."""
        embeddings, _, candidates, _ = inputs.pairs
        scale = None
        if summed:
            scale = embeddings.new_ones(()) if inputs.weights is None else inputs.weights.detach()
        coefficients = coefficients_of(embeddings, candidates, self._scale())
        settings: dict[str, Any] = {**inputs.of_sets(), "backend": self.backend}
        return pair_contrast(*inputs.pairs, scale, coefficients=coefficients, form=self.form, **settings)


class TwoTowerLoss(ShardableLoss, nn.Module):
    """Logits are e^logit_scale · s, of cosines s; a subclass has the sums."""

    shown: ClassVar[tuple[str, ...]] = ("max_scale",)
    observable = True

    def __init__(self, temperature: float, max_scale: float | None, backend: Backend | None) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        if max_scale is not None:
            check_positive(max_scale=max_scale)
            if 1 / temperature > max_scale:
                raise ValueError(
                    f"max_scale={max_scale:g} is below the first scale, 1/temperature = {1 / temperature:g}: raise one "
                    "of them"
                )
        self.max_scale = max_scale
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / temperature)))
        self.backend = backend

    def forward(
        self,
        embeddings: Tensor,
        others: Tensor,
        negatives: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
        sample_ids: Tensor | None = None,
        other_ids: Tensor | None = None,
        negative_ids: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch of pairs, (); 0, connected to the graph, without pairs.

        Parameters
        ----------
        embeddings, others : Tensor
            (B, D) each, floating point, any scale: rows i belong together. Differentiable.
        negatives : Tensor, optional
            (m, D): further candidates of the rows of ``embeddings``. Differentiable. Of InfoNCE on one process alone.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the losses of the pairs. Constants. A pair of weight 0 is absent, also among the
            candidates of the others, and the mean divides by the number of the other pairs.
        sample_ids, other_ids : Tensor, optional
            (B,) integers each: of what the rows of ``embeddings`` and of ``others`` show, such as numbers of images and
            hashes of texts. Off the diagonal a pair i, j of equal ``sample_ids`` or equal ``other_ids`` is no negative;
            the diagonal stays positive. Negative: no id.
        negative_ids : Tensor, optional
            (m,), of the rows of ``negatives``: compared with ``other_ids``.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN or inf.
        """
        if self.max_scale is not None and self.training:
            # By .data: a graph of another call stays right, as what it used is within the limit.
            self.logit_scale.data.clamp_(max=math.log(self.max_scale))
        find_ids, ids = None, None
        if sample_ids is not None or other_ids is not None or negative_ids is not None:
            find_ids = partial(_both_ids, embeddings, negatives, (sample_ids, other_ids, negative_ids))
            # On shards an error waits for the look at each other's input.
            ids = None if self.shards.divided else find_ids()
        loss, seen = None, self._observation
        if seen is not None:
            seen.begin()
        elif negatives is None and not torch.compiler.is_compiling():
            own = self._parameters
            tensors = (embeddings, others, own["logit_scale"], own.get("logit_bias"), None, None, sample_weights)
            loss = self._planned((*tensors, ids, None), ())
        if loss is not None:
            return loss
        loss = self._general(embeddings, others, negatives, sample_weights, find_ids if ids is None else lambda: ids)
        if seen is not None:
            seen.end(self, None)
        return loss

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        embeddings, others = tensors[:2]
        formula = self._formula()
        if others is None or others.shape != embeddings.shape or self.shards.divided or formula is None:
            return None
        kept = copy.copy(self)
        kept.__dict__["_plans"] = None
        formula = replace(formula, ids_keep_positives=True)
        given = (formula, tensors, self.backend, False, partial(_of_tensors, kept))
        return pair_plan(*given) or pair_gpu_plan(*given)

    def _formula(self) -> PairFormula | None:
        """The loss without further negatives; None where it is no weighted sum of a contrast."""
        raise NotImplementedError

    def _general(
        self,
        embeddings: Tensor,
        others: Tensor,
        negatives: Tensor | None,
        sample_weights: Tensor | None,
        ids: Callable[[], Tensor] | None,
    ) -> Tensor:
        """The loss by the sweep that is differentiable twice; ``ids``: see :func:`_both_ids`."""
        if negatives is not None:
            self._check_negatives(embeddings, negatives)

        def check() -> OwnRows:
            check_matrix("embeddings", embeddings)
            check_matrix("others", others, columns=embeddings.shape[1])
            check_same_device(embeddings=embeddings, others=others, logit_scale=self.logit_scale)
            if len(others) != len(embeddings):
                raise ValueError(
                    f"others has {len(others)} rows, and there are {len(embeddings)} embeddings: give pairs"
                )
            check_finite_embeddings(others, "others")
            rows = own_samples(embeddings, sample_weights, pair_dtype(embeddings, others))
            if sample_weights is not None and sample_weights.requires_grad:
                raise ValueError("sample_weights are constants of this loss: pass sample_weights.detach()")
            self._check_parameters()
            return {**rows, "others": others, "ids": None if ids is None else ids()}

        return self._of_joint_batch(check, lambda **rows: self._fused_loss(negatives=negatives, **rows))

    def _check_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            value = parameter.detach()
            if value.device.type == "cpu":
                message = f"{name} = {{}}: set a finite number, and lower the learning rate"
                require(torch.isfinite(value), partial(message.format, value))
        # Beyond it the scale, or its product with a cosine, leaves the type.
        scale, most = self.logit_scale.detach(), 700.0 if self.logit_scale.dtype == torch.float64 else 80.0
        if scale.device.type == "cpu":
            message = (
                f"logit_scale = {{:g}}: its exponential leaves {scale.dtype}; keep it within ±{most:g}, as "
                "max_scale=100 does, and lower the learning rate"
            )
            require(scale.abs() <= most, partial(message.format, scale))

    def _check_negatives(self, embeddings: Tensor, negatives: Tensor) -> None:
        raise ValueError(f"{type(self).__name__} takes pairs alone: leave negatives out")

    def _coefficients(self, embeddings: Tensor, others: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        """Scale and bias of the logits, (2,), of all processes."""
        return self.shards.sum_gradient(
            coefficients_of(embeddings, others, self.shards.local_shard(self.logit_scale).exp(), bias)
        )

    def _scale(self, embeddings: Tensor, others: Tensor, sample_weights: Tensor | None) -> Tensor:
        """Factor of each pair's loss in the mean, (B,): weight / number of weights above 0."""
        like = embeddings.new_ones(len(embeddings), dtype=pair_dtype(embeddings, others))
        weights = like if sample_weights is None else check_sample_weights(sample_weights, like)
        return weights / (weights > 0).sum().clamp(min=1)

    def _contrast(
        self,
        rows: Tensor,
        candidates: Tensor,
        weights: Tensor,
        coefficients: Tensor,
        ids: Tensor | None,
        form: str = "outside",
        summed: bool = True,
    ) -> PairContrast:
        """Losses of the rows of this process; ``summed``: Σ weight · loss, in one sweep.

        Candidate i is the positive of row i, the others are its negatives, but for those that share an id. A weight of
        0 takes both rows i out of all sums.
        """
        own = self.shards.own_slice()
        labels = torch.arange(len(weights), device=weights.device).masked_fill(weights == 0, ABSENT)
        others = torch.cat([labels, labels.new_full((len(candidates) - len(labels),), -1)])
        # All rows are no view: the backward of one copies its gradient.
        pairs = (rows if own == slice(None) else rows[own], labels[own], candidates, others)
        scale = weights[own] if summed else None
        settings: dict[str, Any] = {"form": form, "backend": self.backend}
        if ids is not None:
            of_sets = {"sample_ids": ids[: len(weights)][own], "candidate_ids": ids[: len(candidates)]}
            settings |= {**of_sets, "ids_keep_positives": True}
        seen = self._observation
        if seen is not None and not seen.rooms:  # the first sweep has the first tower's rows
            settings["hardest"] = seen.room(pairs[0], pair_dtype(rows, candidates))
        return pair_contrast(*pairs, scale, coefficients=coefficients, **settings)

    def _fused_loss(
        self,
        embeddings: Tensor,
        others: Tensor,
        sample_weights: Tensor | None,
        negatives: Tensor | None,
        ids: Tensor | None,
    ) -> Tensor:
        """The loss of the checked joint batch."""
        raise NotImplementedError


def _of_tensors(loss: TwoTowerLoss, *tensors: Any) -> Tensor:
    """The loss of the tensors of a plan, its parameters among them, by the general way."""
    embeddings, others, logit_scale, logit_bias, _, _, weights, ids, _ = tensors
    own = {"logit_scale": logit_scale, "logit_bias": logit_bias}
    loss.__dict__["_parameters"] = {name: value for name, value in own.items() if value is not None}
    return loss._general(embeddings, others, None, weights, None if ids is None else lambda: ids)


def _both_ids(embeddings: Any, negatives: Any, ids: tuple[Any, Any, Any]) -> Tensor:
    """Ids of samples, of the others and of negatives as two columns, (B + m, 2) int64, of which some are given."""
    sample_ids, other_ids, negative_ids = ids
    if negative_ids is not None and negatives is None:
        raise ValueError("negative_ids without negatives: leave them out")
    columns = [
        _ids_or_none("sample_ids", sample_ids, embeddings, "embeddings"),
        _ids_or_none("other_ids", other_ids, embeddings, "others"),
    ]
    both = torch.cat(columns, dim=1)
    if negatives is None:
        return both
    of_negatives = _ids_or_none("negative_ids", negative_ids, negatives, "negatives")
    return torch.cat([both, torch.cat([torch.full_like(of_negatives, -1), of_negatives], dim=1)])


def _ids_or_none(name: str, ids: Any, rows: Any, of: str) -> Tensor:
    """Checked ids (n, 1); -1, which is none, where they are not given."""
    if ids is not None:
        return check_ids(name, ids, check_matrix(of, rows), of)
    return torch.full((len(rows), 1), -1, dtype=torch.int64, device=rows.device)
