"""SupCon, Khosla et al. 2020."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import Never

from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.engine.validation import check_choice
from robustdml_ops.losses.families.contrast import ContrastFamilyLoss
from robustdml_ops.losses.families.pairs import PairInputs
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, LossOptions, Reduction, shared
from robustdml_ops.losses.peer.listed_pairs import listed_supcon
from robustdml_ops.losses.peer.package import SubLosses, of_each
from robustdml_ops.ops.pairs.backends import ContrastOptions
from robustdml_ops.ops.pairs.formula import PairFormula
from robustdml_ops.ops.pairs.sets import count_pairs


class SupConLoss(ContrastFamilyLoss):
    """Supervised contrastive loss: a softmax over all candidates, whose targets are all samples of the same class.

        outside: ℓ_i = log Σ_{j∈P_i∪N_i} e^{s_ij/τ} − 1/|P_i| Σ_{p∈P_i} s_ip/τ
        inside:  ℓ_i = log Σ_{j∈P_i∪N_i} e^{s_ij/τ} − log(1/|P_i| Σ_{p∈P_i} e^{s_ip/τ})

    The candidates j are the other samples of the batch or, where they are given, the rows of ``ref_emb`` instead. The
    mean is over the samples whose loss is above 0; a sample without positives has 0, and so have all samples of a batch
    without a negative pair.

    What is of size B×m exists a chunk of samples, or a tile, at a time. Similarities and sums are in float32 at least;
    so is the result.

    Source: Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020, Eqs. 2 and 3.

    Parameters
    ----------
    temperature : float
        τ > 0.
    form : {"outside", "inside"}
        Whether the mean over the positives is outside or inside of the logarithm.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: (). ``"none"``: (B,).
        ``"sum"``: the sum of what ``"none"`` gives.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.
    ignore_index : int, optional
        Samples with this label are absent, as samples of weight 0 are; on pairs rows of ``ref_emb``, too.
    distance : str or object, optional
        Name of a distance, such as "cosine", or a distance of pytorch-metric-learning, see docs/compatibility.md. None:
        the cosine, or the loss's own.
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
    >>> from robustdml_ops.losses import SupConLoss
    >>> SupConLoss(temperature=1.0)(torch.eye(3), torch.tensor([0, 0, 1]))  # log(1 + 1)
    tensor(0.6931)
    """

    default_reducer = "AvgNonZeroReducer"
    shown = ("temperature", "form")

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        form: Literal["outside", "inside"] = "outside",
        reduction: Reduction = "mean",
        backend: Backend | None = None,
        ignore_index: int | None = None,
        distance: Any = None,
        reducer: Any = None,
        embedding_regularizer: Any = None,
        embedding_reg_weight: float = 1.0,
        collect_stats: bool | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__(temperature, **shared(LossOptions, locals()))
        check_choice(("outside", "inside"), form=form)
        self.form = form

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        joint, shards = self._checked(inputs), self.shards
        checked, contrasted = self._own_anchors(joint), self._has_negatives(joint)
        if self._in_one_sweep(checked):
            total, _, _, above = self._contrast(checked, summed=True)
        else:
            losses = self._sample_losses(checked)
            weighted = checked.weighted(losses) * contrasted
            if self.reduction != "mean":
                return weighted if self.reduction == "none" else shards.sum_terms(weighted.sum())
            total, above = weighted.sum(), (losses > 0).sum()
        return shards.sum_terms(
            total / torch.where(contrasted, shards.sum_over_processes(above).clamp(min=1), torch.inf)
        )

    def _has_negatives(self, joint: PairInputs) -> Tensor:
        """Whether there is a negative pair in any process, ()."""
        if joint.listed is not None:
            return (
                self.shards.sum_over_processes(torch.tensor(len(joint.listed.negatives), device=joint.pairs[0].device))
                > 0
            )
        if not (sets := joint.sets()).are_plain:
            return count_pairs(sets)[1].sum() > 0
        _, labels, _, candidate_labels = joint.pairs
        # ABSENT is the smallest number; one more serves an empty batch.
        both = pad(labels if candidate_labels is None else torch.cat([labels, candidate_labels]), (0, 1), value=ABSENT)
        return both.amax() > both.masked_fill(both == ABSENT, torch.iinfo(both.dtype).max).amin()

    def _formula(self, tensors: Sequence[Any]) -> PairFormula:
        return PairFormula(ContrastOptions(self.form), "above", scale=self._scale())

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        checked = self._checked(inputs)
        losses = checked.weighted(self._sample_losses(checked))
        return {"loss": of_each(losses * self._has_negatives(checked), checked.weights)}

    def _dense(self, inputs: LossInputs, reason: str) -> SubLosses:
        if self.form != "outside":
            raise ValueError(f"form={self.form!r} is of the fused sums, and {reason} is in none of them: leave one out")
        return super()._dense(inputs, reason)

    def _sample_losses(self, inputs: PairInputs) -> Tensor:
        """ℓ (B,)."""
        if inputs.listed is None:
            return self._contrast(inputs).loss
        return listed_supcon(inputs.cosines(), self._scale(), self.form)
