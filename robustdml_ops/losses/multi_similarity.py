"""Multi-similarity, Wang et al. 2019."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Never

from robustdml_ops.engine.validation import check_finite_numbers, check_positive
from robustdml_ops.losses.families.pairs import PairFamilyLoss, PairInputs
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, LossOptions, Reduction, shared
from robustdml_ops.losses.peer.listed_pairs import listed_lse
from robustdml_ops.losses.peer.package import named
from robustdml_ops.ops import PairLSE, pair_lse, pair_lse_sum
from robustdml_ops.ops.pairs import lse_options
from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.formula import PairFormula


class MultiSimilarityLoss(PairFamilyLoss):
    """Multi-similarity loss: each sample pulls its hardest positives and pushes its hardest negatives.

        ℓ_i = 1/α log(1 + Σ_{j∈P_i} e^{−α(s_ij−δ)}) + 1/β log(1 + Σ_{j∈N_i} e^{β(s_ij−δ)})

    The candidates j are the other samples of the batch or, where they are given, the rows of ``ref_emb`` instead.

    Value, mining and gradient come from one sweep over the samples (``"none"``: from two). What is of size B×m exists
    a chunk of samples at a time. Similarities and sums are in float32 at least; so is the result.

    Source: Wang, Han, Huang, Dong, Scott, "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
    CVPR 2019; per sample as Eq. 5 of Barbany et al., "ProcSim", 2024.

    Parameters
    ----------
    alpha, beta, base : float
        Scales > 0 of the exponents of positive and of negative pairs, and the cosine δ at which these are 0.
    epsilon : float, optional
        Mining, within the loss: a negative stays if it is more similar than the least similar positive less ε, a
        positive if it is less similar than the most similar negative plus ε. None: all pairs.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: (), over all samples, with pairs or without. ``"none"``: (B,).
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
    >>> from robustdml_ops.losses import MultiSimilarityLoss
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> MultiSimilarityLoss(epsilon=0.1)(embeddings, torch.arange(32) // 4).backward()
    """

    served_forms = ("cosine", "squared")
    recordable = ("alpha", "beta", "base")
    shown = (*recordable, "epsilon")

    def __init__(
        self,
        alpha: float = 2,
        beta: float = 50,
        base: float = 0.5,
        *,
        epsilon: float | None = None,
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
        super().__init__(**shared(LossOptions, locals()))
        check_positive(alpha=alpha, beta=beta)
        check_finite_numbers(base=base, epsilon=0.0 if epsilon is None else epsilon)
        self.alpha, self.beta, self.base, self.epsilon = alpha, beta, base, epsilon

    def _refuse(self, inputs: LossInputs) -> None:
        if self.epsilon is not None:
            self._refuse_divided_bank(inputs, f"epsilon={self.epsilon} mines in a whole bank")

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        checked = self._own_anchors(self._checked(inputs))
        if self._in_one_sweep(checked) and not checked.sharded:
            return self._weighted_sum(checked)
        return self._mean(self._sample_losses(checked), checked)

    def _formula(self, tensors: Sequence[Any]) -> PairFormula:
        options = lse_options(pair_dtype(*tensors[:2]), **self._settings())
        return PairFormula(options, divisors=(self.alpha, self.beta))

    def _weighted_sum(self, inputs: PairInputs, candidate_weights: Tensor | None = None) -> Tensor:
        """Σ weight_i ℓ_i / present, () over the anchors of all processes."""
        scales = (inputs.scale(self.alpha), inputs.scale(self.beta))
        settings = self._settings(candidate_weights=candidate_weights, **inputs.of_sets())
        return self.shards.sum_terms(pair_lse_sum(*inputs.pairs, *scales, **settings, backend=self.backend))

    def _sample_losses(self, inputs: PairInputs, candidate_weights: Tensor | None = None) -> Tensor:
        """ℓ (B,)."""
        if inputs.listed is not None:
            lse = listed_lse(inputs.cosines(), **self._settings())
        else:
            settings = self._settings(candidate_weights=candidate_weights, **inputs.of_sets())
            lse = pair_lse(*inputs.pairs, **settings, backend=self.backend)
        if inputs.sharded:
            lse = PairLSE(*self.shards.join_log_one_plus(torch.stack(lse)).unbind())
        return lse.positive / self.alpha + lse.negative / self.beta

    def _settings(self, **more: Any) -> dict[str, Any]:
        """Settings of the log-sum-exps of cosines, and ``more``."""
        settings = {"alpha": self.alpha, "beta": self.beta, "base": self.base, "epsilon": self.epsilon, **more}
        if self._form() == "squared":
            # α(d² − δ) = 2α((1 − δ/2) − s), and the same with β.
            if self.epsilon is not None:
                raise ValueError(
                    f"epsilon={self.epsilon} mines by cosines, not by {named(self.distance)}: take a miner"
                )
            settings |= {"alpha": 2 * self.alpha, "beta": 2 * self.beta, "base": 1 - self.base / 2}
        return settings
