"""NT-Xent, Sohn 2016 and Chen et al. 2020."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Never

from robustdml_ops.engine.sums import add_rows
from robustdml_ops.losses.contrastive import count_labelled
from robustdml_ops.losses.families.contrast import ContrastFamilyLoss
from robustdml_ops.losses.families.pairs import PairInputs
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, LossOptions, Reduction, shared
from robustdml_ops.losses.peer.listed_pairs import labelled_nt_xent, listed_nt_xent
from robustdml_ops.losses.peer.package import SubLosses
from robustdml_ops.ops.pairs.backends import ContrastOptions
from robustdml_ops.ops.pairs.formula import PairFormula
from robustdml_ops.ops.pairs.sets import count_pairs


class NTXentLoss(ContrastFamilyLoss):
    """Normalised temperature-scaled cross-entropy: every positive pair against the negatives of its anchor.

        L = 1/|A| Σ_{(i,p)∈A} log(e^{s_ip/τ} + Σ_{n∈N_i} e^{s_in/τ}) − s_ip/τ        A: the positive pairs

    The candidates are the other samples of the batch or, where they are given, the rows of ``ref_emb`` instead. With
    two views of each sample and their numbers as labels this is SimCLR's loss; with more positives, unlike in
    :class:`~robustdml_ops.losses.SupConLoss`, the other positives are not in the denominator.

    Source: Chen, Kornblith, Norouzi, Hinton, "A Simple Framework for Contrastive Learning of Visual Representations",
    ICML 2020, Eq. 1; Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss Objective", NIPS 2016.

    Parameters
    ----------
    temperature : float
        τ > 0.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: (), over the positive pairs. ``"none"``: (B,), ℓ_i = B/|A| Σ_p ℓ_ip, whose mean is L.
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
    >>> from robustdml_ops.losses import NTXentLoss
    >>> NTXentLoss(temperature=1.0)(torch.eye(3), torch.tensor([0, 0, 1]))  # log(1 + 1)
    tensor(0.6931)
    """

    def __init__(
        self,
        temperature: float = 0.07,
        *,
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

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        joint = self._checked(inputs)
        checked, pairs = self._own_anchors(joint), self._number_of_pairs(joint)
        if self._in_one_sweep(checked):
            return self.shards.sum_terms(self._contrast(checked, summed=True).total / pairs)
        if checked.listed is None:
            losses = self._contrast(checked).loss
        else:
            each = listed_nt_xent(checked.cosines(), self._scale())
            losses = add_rows(each.new_zeros(len(checked.pairs[0])), checked.listed.positive_anchors, each)
        return self._mean(losses * checked.present / pairs, checked)

    def _number_of_pairs(self, inputs: PairInputs) -> Tensor | int:
        """Positive pairs of all processes, at least 1."""
        if inputs.listed is None:
            if not (sets := inputs.sets()).are_plain:
                return count_pairs(sets)[0].sum().clamp(min=1)
            _, labels, _, candidate_labels = inputs.pairs
            return count_labelled(labels, candidate_labels)[0].sum().clamp(min=1)
        here = torch.tensor(len(inputs.listed.positives), device=inputs.pairs[0].device)
        return self.shards.sum_over_processes(here).clamp(min=1)

    def _formula(self, tensors: Sequence[Any]) -> PairFormula:
        return PairFormula(ContrastOptions(self.form), "pairs", scale=self._scale())

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        checked = self._checked(inputs)
        if checked.listed is None:
            losses, pairs = labelled_nt_xent(checked.pairs, self._scale(), self.backend)
        else:
            losses, pairs = listed_nt_xent(checked.cosines(), self._scale()), checked.listed[:2]
        if checked.weights is not None:
            losses = losses * checked.weights[pairs[0]]
        return {"loss": {"losses": losses, "indices": pairs, "reduction_type": "pos_pair"}}
