"""Contrastive loss with a memory bank, Wang et al. 2020, as Liu et al. (PRISM) write it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from robustdml_ops.engine.plan import Plan, Results
from robustdml_ops.engine.validation import check_choice, check_finite_numbers
from robustdml_ops.losses.families.pairs import PairFamilyLoss, PairInputs
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, Reduction
from robustdml_ops.ops import pair_hinge, pair_hinge_sum
from robustdml_ops.ops.pairs import hinge_options
from robustdml_ops.ops.pairs.formula import PairFormula


class MemoryContrastiveLoss(PairFamilyLoss):
    """Memory-based contrastive loss (MCL): the pairs of the batch, and those of the batch with a memory bank.

        ℓ_i = Σ_n [s_in − λ]₊ − Σ_p s_ip        over the other samples of the batch, and again over the bank

    ``ref_emb`` and ``ref_labels`` are the bank, beside the batch and not in its place: with a
    :class:`robustdml_ops.robust.MemoryBank`, its ``features`` and ``labels``. Empty slots, labelled ``ABSENT``, are
    passed over; without a bank, or with an empty one, the batch's term is the loss.

    Source: Liu et al., "Noise-Resistant Deep Metric Learning with Probabilistic Instance Filtering" (PRISM), Eqs. 16
    and 17; Wang, Zhang, Huang, Scott, "Cross-Batch Memory for Embedding Learning", CVPR 2020.

    Parameters
    ----------
    margin : float
        Margin λ: negatives with a cosine below it cost nothing.
    variant : {"paper", "xbm", "authors"}
        ``"paper"``: as above. ``"xbm"``: as the code of cross-batch memory, Σ_p (1 − s_ip) over positives with s below
        1 − 10⁻⁵, Σ_n s_in over negatives with s above λ. ``"authors"``: as the code of PRISM, ``"xbm"`` with the bank's
        term divided by B where the batch's is divided by the number of samples whose weight is not 0.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: (), the mean over the samples. ``"none"``: (B,); its sum is the paper's loss, which does not divide.
        ``"sum"``: the sum of what ``"none"`` gives.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.
    ignore_index : int, optional
        Samples with this label are absent, as samples of weight 0 are; on pairs rows of ``ref_emb``, too.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import MemoryContrastiveLoss
    >>> from robustdml_ops.robust import MemoryBank
    >>> bank = MemoryBank(num_classes=2, embedding_size=2, capacity=4)
    >>> slots = bank.enqueue(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    >>> X, y = torch.tensor([[1.0, 0.0], [0.6, 0.8]]), torch.tensor([0, 1])
    >>> MemoryContrastiveLoss()(X, y, None, bank.features, bank.labels)  # (2 · (0.6 − 0.5) + (0.6 − 0.5) − 1)/2
    tensor(-0.3500)
    """

    shown = ("margin", "variant")

    def __init__(
        self,
        margin: float = 0.5,
        *,
        variant: Literal["paper", "xbm", "authors"] = "paper",
        reduction: Reduction = "mean",
        backend: Backend | None = None,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(reduction=reduction, backend=backend, ignore_index=ignore_index)
        check_finite_numbers(margin=margin)
        check_choice(("paper", "xbm", "authors"), variant=variant)
        self.margin, self.variant = margin, variant

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        checked = self._checked(inputs)
        embeddings, labels, candidates, _ = checked.pairs
        given: dict[str, Any] = {"ids": (checked.ids[0], None), "seen": checked.seen}
        alone = PairInputs((embeddings, labels, None, None), None, checked.weights, checked.present, **given)
        of_batch = self._term(self._own_anchors(alone))
        if candidates is None:
            return of_batch
        of_bank = self._term(self._own_anchors(checked))
        if self.variant == "authors":
            of_bank = of_bank * checked.present / max(1, len(embeddings))
        return of_batch + of_bank

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        of_batch = self._pair_plan(_alone(tensors))
        if tensors[1] is None or of_batch is None:
            return of_batch if tensors[5] is None else None
        of_bank = self._pair_plan(tensors)
        return None if of_bank is None else BatchAndBankPlan(of_bank.wanted, of_batch, of_bank)

    def _formula(self, tensors: Sequence[Any]) -> PairFormula:
        whole_batch = self.variant == "authors" and tensors[1] is not None
        options = hinge_options(**self._numbers(), distance="cosine")
        return PairFormula(options, "samples" if whole_batch else "present", (1.0, 1.0))

    def _refuse(self, inputs: LossInputs) -> None:
        if inputs.indices_tuple is not None:
            raise ValueError(f"{type(self).__name__} takes all pairs: leave indices_tuple out, or take ContrastiveLoss")

    def _numbers(self) -> dict[str, Any]:
        """All variants are hinges with an offset: −s is [2 − s]₊ − 2, and s where s > λ is [s − λ]₊ + λ."""
        paper = self.variant == "paper"
        return {
            "positive_margin": 2.0 if paper else 1 - 1e-5,
            "positive_offset": -2.0 if paper else 1e-5,
            "negative_margin": self.margin,
            "negative_offset": 0.0 if paper else self.margin,
        }

    def _term(self, inputs: PairInputs) -> Tensor:
        settings: dict[str, Any] = {
            **self._numbers(),
            **inputs.of_sets(),
            "backend": self.backend,
        }
        if self._in_one_sweep(inputs):
            return self.shards.sum_terms(pair_hinge_sum(*inputs.pairs, inputs.scale(), inputs.scale(), **settings))
        hinge = pair_hinge(*inputs.pairs, **settings)
        losses = hinge.positive + hinge.negative
        return self._mean(self.shards.sum_terms(losses) if inputs.sharded else losses, inputs)


@dataclass(frozen=True)
class BatchAndBankPlan(Plan):
    """The sum of two steps: of the batch with itself, and of the batch with the candidates."""

    of_batch: Plan
    of_bank: Plan

    def run(self, *tensors: Any) -> Results | None:
        """Both steps."""
        of_batch = self.of_batch.run(*_alone(tensors))
        of_bank = None if of_batch is None else self.of_bank.run(*tensors)
        if of_batch is None or of_bank is None:
            return None
        (loss, (dX, *_)), (other, gradients) = of_batch, of_bank
        if dX is not None and gradients[0] is not None:
            total, more = (getattr(gradient, "G", gradient) for gradient in (gradients[0], dX))  # of the same unit rows
            total += more
        return loss.add_(other), gradients

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweeps that are differentiable twice."""
        return self.of_bank.general(*tensors)

    def scale(self, gradients: list[Tensor | None], upstream: Tensor) -> list[Tensor | None]:
        """As of both steps."""
        return self.of_bank.scale(gradients, upstream)


def _alone(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Tensors of a step without candidates."""
    X, _, scale, bias, labels, _, weights, ids, _, *rest = tensors
    return X, None, scale, bias, labels, None, weights, ids, None, *rest
