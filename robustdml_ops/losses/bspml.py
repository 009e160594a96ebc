"""Weighted informative batch loss of BSPML, Zhang et al. 2023."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from robustdml_ops.engine.labels import pair_labels, without_samples
from robustdml_ops.engine.plan import Plan
from robustdml_ops.engine.validation import check_matrix, check_sample_weights
from robustdml_ops.losses.families.pairs import PairInputs
from robustdml_ops.losses.inputs import LossInputs, refuse_candidates
from robustdml_ops.losses.multi_similarity import MultiSimilarityLoss
from robustdml_ops.losses.options import Backend, Reduction
from robustdml_ops.losses.peer.package import SubLosses
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.formula import PairFormula


class BSPMLLoss(MultiSimilarityLoss):
    """Multi-similarity of the informative pairs of a batch, weighted by anchors and candidates.

        ℓ_i = w_i { mean_{p∈P̂_i} w_p · 1/α log(1 + Σ_{p∈P̂_i} e^{−α(s_ip−ρ)})
                  + mean_{n∈N̂_i} w_n · 1/β log(1 + Σ_{n∈N̂_i} e^{ β(s_in−ρ)}) }
        N̂_i = {n : s_in > min_{p∈P_i} s_ip − ε},   P̂_i = {p : s_ip < max_{n∈N_i} s_in + ε}

    Weights come from :class:`robustdml_ops.robust.BalancedSelfPaced`; with all of them 1 this is
    :class:`MultiSimilarityLoss` with ``epsilon``.

    ``sample_weights`` (B,), ≥ 0, are w, constants. Unlike in the other losses a sample of weight 0 is not absent, see
    ``exclude_zero_weights``, and the mean divides by B. The loss mines for itself, in the batch: ``indices_tuple``,
    ``ref_emb`` and ``ref_labels`` are refused. Speed and memory are those of MultiSimilarityLoss.

    Source: Zhang, Luo, Gu, "Denoising Multi-Similarity Formulation", AAAI 2023, Eqs. 4, 5 and 7, which prints |P̂|^α
    for |P̂|·α. Without an informative pair a term is 0.

    Parameters
    ----------
    alpha, beta, base : float
        Scales > 0 of the exponents of positive and of negative pairs, and the cosine ρ at which these are 0.
    epsilon : float
        ε of the informative pairs.
    exclude_zero_weights : bool
        False, as Eq. 7: a sample of weight 0 still takes part in mining, and in the logarithms of other anchors. True
        leaves it out of both.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: (), over all samples of the batch, as Eq. 7 divides by PK. ``"none"``: (B,).
        ``"sum"``: the sum of what ``"none"`` gives.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import BSPMLLoss
    >>> embeddings, weights = torch.randn(64, 32, requires_grad=True), torch.rand(64)
    >>> BSPMLLoss()(embeddings, torch.arange(64) // 4, sample_weights=weights).backward()
    """

    def __init__(
        self,
        alpha: float = 2,
        beta: float = 50,
        base: float = 1.0,
        epsilon: float = 0.1,
        *,
        exclude_zero_weights: bool = False,
        reduction: Reduction = "mean",
        backend: Backend | None = None,
    ) -> None:
        super().__init__(alpha, beta, base, epsilon=epsilon, reduction=reduction, backend=backend)
        self.exclude_zero_weights = exclude_zero_weights

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        self._refuse(inputs)
        embeddings = check_matrix("embeddings", inputs.embeddings)
        labels, _ = pair_labels(inputs.labels, embeddings)
        weights = embeddings.new_ones(len(embeddings), dtype=pair_dtype(embeddings, None))
        candidate_weights = None
        if inputs.sample_weights is not None:
            weights = check_sample_weights(inputs.sample_weights, weights).detach()
            candidate_weights = self.shards.put_own_first(weights)
        if self.exclude_zero_weights:
            labels = without_samples(labels, weights == 0)
        mean = self.reduction == "mean"
        scale = weights / max(1, len(labels)) if mean else weights
        given: dict[str, Any] = {"ids": self._ids(inputs), "seen": self._observation}
        pairs = PairInputs((embeddings, labels, None, None), None, scale, present=1, **given)
        if mean:
            return self._weighted_sum(self._own_anchors(pairs), candidate_weights)
        own = weights[self.shards.own_slice()]
        losses = own * self._sample_losses(self._own_anchors(pairs), candidate_weights)
        return losses if self.reduction == "none" else self.shards.sum_terms(losses.sum())

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        return super()._plan(tensors) if tensors[1] is None and tensors[5] is None else None

    def _formula(self, tensors: Sequence[Any]) -> PairFormula:
        formula, absent = super()._formula(tensors), self.exclude_zero_weights
        return replace(formula, N="samples", candidate_weights=True, absent_zero_weights=absent)

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        raise NotImplementedError("BSPMLLoss has its own reduction: leave its reducer and compute_loss alone")

    def _refuse(self, inputs: LossInputs) -> None:
        if inputs.indices_tuple is not None:
            raise ValueError("BSPMLLoss mines for itself: leave indices_tuple out")
        refuse_candidates("BSPMLLoss weighs the pairs of one batch", inputs)
