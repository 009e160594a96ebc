"""Multi-similarity, Wang et al. 2019."""

from typing import Any

from torch import Tensor

from robustdml_ops.losses.pair_family import PairBatch, PairFamilyLoss
from robustdml_ops.losses.reduction import reduce_samples
from robustdml_ops.ops import pair_lse, pair_lse_sum
from robustdml_ops.validation import check_finite_numbers, check_positive


class MultiSimilarityLoss(PairFamilyLoss):
    """Multi-similarity loss: each sample pulls its hardest positives and pushes its hardest negatives.

        ℓ_i = 1/α log(1 + Σ_{j∈P_i} e^{−α(s_ij−δ)}) + 1/β log(1 + Σ_{j∈N_i} e^{β(s_ij−δ)})

    The candidates j are the other samples of the batch or, where they are given, the rows of ``ref_emb`` instead.

    Parameters
    ----------
    alpha, beta : float
        α and β, > 0.
    base : float
        δ.
    epsilon : float, optional
        Mining, within the loss: a negative stays if it is more similar than the least similar positive less ε, a
        positive if it is less similar than the most similar negative plus ε. None: all pairs.
    reduction : {"mean", "none"}
        ``"mean"``: (), over all samples, with pairs or without. ``"none"``: (B,).
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``; None: the fastest that serves the device.

    Notes
    -----
    Value, mining and gradient come from one sweep over the samples (``"none"``: from two). What is of size B×m exists
    a chunk of samples at a time. Similarities and sums are in float32 at least, whatever the inputs are; the result is
    float32 (float64 if the embeddings are).

    With ``epsilon=None`` these are the numbers of pytorch-metric-learning's ``MultiSimilarityLoss``, with ``epsilon``
    those of its ``MultiSimilarityMiner(epsilon)`` followed by that loss. One difference: where at most one positive and
    one negative pair are left in the whole batch, theirs returns 0.

    Source: Wang, Han, Huang, Dong, Scott, "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning",
    CVPR 2019; per sample as Eq. 5 of Barbany et al., "ProcSim", 2024.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import MultiSimilarityLoss
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> loss = MultiSimilarityLoss(epsilon=0.1)(embeddings, torch.arange(32) // 4)
    >>> loss.backward()
    >>> embeddings.grad.shape
    torch.Size([32, 64])
    """

    def __init__(
        self,
        alpha: float = 2,
        beta: float = 50,
        base: float = 0.5,
        *,
        epsilon: float | None = None,
        reduction: str = "mean",
        backend: str | None = None,
    ) -> None:
        super().__init__(reduction, backend)
        check_positive(alpha=alpha, beta=beta)
        check_finite_numbers(base=base, epsilon=0.0 if epsilon is None else epsilon)
        self.alpha, self.beta, self.base, self.epsilon = alpha, beta, base, epsilon

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"alpha={self.alpha}, beta={self.beta}, base={self.base}, epsilon={self.epsilon}"

    def _loss(self, batch: PairBatch) -> Tensor:
        settings: dict[str, Any] = {
            "alpha": self.alpha,
            "beta": self.beta,
            "base": self.base,
            "epsilon": self.epsilon,
            "backend": self.backend,
        }
        if self._in_one_sweep(batch):
            return pair_lse_sum(*batch.pairs, batch.share / self.alpha, batch.share / self.beta, **settings)
        lse = pair_lse(*batch.pairs, **settings)
        return reduce_samples(lse.positive / self.alpha + lse.negative / self.beta, batch.weights, self.reduction)
