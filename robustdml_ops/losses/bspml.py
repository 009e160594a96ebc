"""Weighted informative batch loss of BSPML, Zhang et al. 2023."""

from typing import Any

from torch import Tensor

from robustdml_ops.engine.label_sets import ABSENT
from robustdml_ops.engine.validation import check_finite_numbers, check_matrix, check_positive, check_sample_weights
from robustdml_ops.losses.families.pairs import PairFamilyLoss, PairInputs
from robustdml_ops.losses.inputs import LossInputs, pair_labels, refuse_candidates
from robustdml_ops.ops import pair_lse, pair_lse_sum
from robustdml_ops.ops.pairs.autograd import pair_dtype


class BSPMLLoss(PairFamilyLoss):
    """Multi-similarity of the informative pairs of a batch, weighted by anchors and candidates.

        ℓ_i = w_i { mean_{p∈P̂_i} w_p · 1/α log(1 + Σ_{p∈P̂_i} e^{−α(s_ip−ρ)})
                  + mean_{n∈N̂_i} w_n · 1/β log(1 + Σ_{n∈N̂_i} e^{ β(s_in−ρ)}) }
        N̂_i = {n : s_in > min_{p∈P_i} s_ip − ε},   P̂_i = {p : s_ip < max_{n∈N_i} s_in + ε}

    Weights come from :class:`robustdml_ops.robust.BalancedSelfPaced`; with all of them 1 this is
    :class:`MultiSimilarityLoss` with ``epsilon``.

    Parameters
    ----------
    alpha : float
        Scale α > 0 of the exponents of positive pairs.
    beta : float
        Scale β > 0 of the exponents of negative pairs.
    base : float
        Cosine ρ at which the exponents are 0.
    epsilon : float
        Mining: a negative stays if it is more similar than the least similar positive less ε, a positive if it is
        less similar than the most similar negative plus ε.
    exclude_zero_weights : bool
        Eq. 7 multiplies the logarithms by mean weights, but a sample of weight 0 still has its term in them, as the
        positive or negative of other anchors, and still takes part in mining. True leaves it out of all of that.
    reduction : {"mean", "none"}
        ``"mean"``: (), over all samples of the batch, as Eq. 7 divides by PK. ``"none"``: (B,).
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``; None: the fastest that serves the device.

    Notes
    -----
    ``sample_weights`` (B,), ≥ 0, are w, constants. Unlike in the other losses a sample of weight 0 is not absent, see
    ``exclude_zero_weights``, and the mean divides by B. The loss mines for itself, in the batch: ``indices_tuple``,
    ``ref_emb`` and ``ref_labels`` are refused.

    Value, mining and gradient come from one sweep over the samples (``"none"``: from two). Similarities and sums are in
    float32 at least, whatever the inputs are; the result is float32 (float64 if the embeddings are).

    Source: Zhang, Luo, Gu, "Denoising Multi-Similarity Formulation", AAAI 2023, Eqs. 4, 5 and 7, which prints |P̂|^α
    for |P̂|·α. Without an informative pair a term is 0.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import BSPMLLoss
    >>> embeddings, weights = torch.randn(64, 32, requires_grad=True), torch.rand(64)
    >>> loss = BSPMLLoss()(embeddings, torch.arange(64) // 4, sample_weights=weights)
    >>> loss.backward()
    >>> embeddings.grad.shape
    torch.Size([64, 32])
    """

    def __init__(
        self,
        alpha: float = 2,
        beta: float = 50,
        base: float = 1.0,
        epsilon: float = 0.1,
        *,
        exclude_zero_weights: bool = False,
        reduction: str = "mean",
        backend: str | None = None,
    ) -> None:
        super().__init__(reduction=reduction, backend=backend)
        check_positive(alpha=alpha, beta=beta)
        check_finite_numbers(base=base, epsilon=epsilon)
        self.alpha, self.beta, self.base, self.epsilon = alpha, beta, base, epsilon
        self.exclude_zero_weights = exclude_zero_weights

    def _loss(self, inputs: LossInputs) -> Tensor:
        self._refuse_others(inputs)
        embeddings = check_matrix("embeddings", inputs.embeddings)
        labels, _ = pair_labels(inputs.labels, embeddings)
        weights = embeddings.new_ones(len(embeddings), dtype=pair_dtype(embeddings, None))
        candidate_weights = None
        if inputs.sample_weights is not None:
            weights = candidate_weights = check_sample_weights(inputs.sample_weights.detach(), weights)
        if self.exclude_zero_weights:
            labels = labels.masked_fill(weights == 0, ABSENT)
        B, checked = max(1, len(labels)), PairInputs((embeddings, labels, None, None), None, weights, 1)
        if candidate_weights is not None:
            candidate_weights = self.shards.own_first(candidate_weights)
        checked = self._own_anchors(checked)
        assert checked.weights is not None
        settings: dict[str, Any] = {
            "alpha": self.alpha,
            "beta": self.beta,
            "base": self.base,
            "epsilon": self.epsilon,
            "candidate_weights": candidate_weights,
            "anchors_first": checked.anchors_first,
            "backend": self.backend,
        }
        if self.reduction == "mean":
            scale = checked.weights / B
            return self.shards.total(pair_lse_sum(*checked.pairs, scale / self.alpha, scale / self.beta, **settings))
        lse = pair_lse(*checked.pairs, **settings)
        return checked.weights * (lse.positive / self.alpha + lse.negative / self.beta)

    def _own_rows(self, inputs: LossInputs) -> dict[str, Tensor | None]:
        self._refuse_others(inputs)
        return super()._own_rows(inputs)

    def _refuse_others(self, inputs: LossInputs) -> None:
        if inputs.indices_tuple is not None:
            raise ValueError("BSPMLLoss mines for itself: leave indices_tuple out")
        refuse_candidates(type(self).__name__, inputs)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"alpha={self.alpha}, beta={self.beta}, base={self.base}, epsilon={self.epsilon}"
