"""InfoNCE of two towers (CLIP's loss), and RINCE."""

import math

import torch
from torch import Tensor

from robustdml_ops.engine.validation import check_matrix, check_number, check_positive, check_same_device, require
from robustdml_ops.losses.families.contrast import TwoTowerLoss
from robustdml_ops.losses.options import Backend
from robustdml_ops.ops.pairs.backends import ContrastOptions
from robustdml_ops.ops.pairs.formula import PairFormula


class InfoNCELoss(TwoTowerLoss):
    """InfoNCE of pairs of embeddings, as of images and texts, with a learnt temperature: the loss of CLIP.

        ℓ_i = log Σ_j e^{z_ij} − z_ii,    z_ij = e^logit_scale s_ij,    L = mean of ℓ_i over the rows, and of both sides

    With ``q`` each ℓ_i is that of RINCE, which bounds the loss of pairs that do not belong together:

        ℓ_i = −e^{q z_ii}/q + (λ Σ_j e^{z_ij})^q/q

    Nothing of size B×B exists but a chunk or tile at a time. On shards each process brings its pairs, all
    rows of both towers are gathered, and each sweeps over its own rows.

    Source: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021; van den
    Oord et al. 2018; RINCE: Chuang et al., "Robust Contrastive Learning against Noisy Views", CVPR 2022, Eq. 5.

    Parameters
    ----------
    temperature : float
        Initial value of e^−logit_scale, > 0. The parameter ``logit_scale`` is learnt; ``requires_grad_(False)`` on it
        fixes the temperature.
    symmetric : bool
        False: the rows of ``embeddings`` alone have losses.
    q, lam : float
        RINCE: 0 < q ≤ 1, and λ > 0. q None: InfoNCE.
    max_scale : float, optional
        A training step first clamps ``logit_scale`` so that e^logit_scale is at most this. CLIP takes 100. None: no
        limit.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import InfoNCELoss
    >>> InfoNCELoss(temperature=1.0)(torch.eye(2), torch.eye(2)).detach()  # log(1 + e⁻¹)
    tensor(0.3133)
    """

    shown = ("symmetric", "q", "lam", "max_scale")

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        symmetric: bool = True,
        q: float | None = None,
        lam: float = 0.01,
        max_scale: float | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(temperature, max_scale, backend)
        check_positive(lam=lam)
        if q is not None:
            check_number("q", q)
        if q is not None and not 0 < q <= 1:
            raise ValueError(f"q must be in (0, 1], got {q}: leave it out for InfoNCE")
        self.symmetric, self.q, self.lam = symmetric, q, lam

    def _check_negatives(self, embeddings: Tensor, negatives: Tensor) -> None:
        check_matrix("negatives", negatives, columns=embeddings.shape[1])
        check_same_device(embeddings=embeddings, negatives=negatives)
        if self.shards.divided:
            raise ValueError("negatives on shards: every process would bring its own; leave them out")

    def _formula(self) -> PairFormula | None:
        if self.q is not None:
            return None
        sides, form = (2.0, "both") if self.symmetric else (1.0, "outside")
        return PairFormula(ContrastOptions(form), divisors=(sides, math.inf))

    def _fused_loss(
        self,
        embeddings: Tensor,
        others: Tensor,
        sample_weights: Tensor | None,
        negatives: Tensor | None,
        ids: Tensor | None,
    ) -> Tensor:
        scale = self._scale(embeddings, others, sample_weights) / (2 if self.symmetric else 1)
        coefficients = self._coefficients(embeddings, others)
        candidates = others if negatives is None else torch.cat([others, negatives.to(others.dtype)])
        if self.symmetric and self.q is None and not self.shards.divided:
            return self._contrast(embeddings, candidates, scale, coefficients, ids, "both").total
        total = self._of_rows(embeddings, candidates, scale, coefficients, ids)
        if self.symmetric:
            total = total + self._of_rows(others, embeddings, scale, coefficients, ids)
        return self.shards.sum_terms(total)

    def _of_rows(
        self, rows: Tensor, candidates: Tensor, scale: Tensor, coefficients: Tensor, ids: Tensor | None
    ) -> Tensor:
        """Σ_i scale_i ℓ_i of the rows of this process."""
        if self.q is None:
            return self._contrast(rows, candidates, scale, coefficients, ids).total
        _, loss, lse, _ = self._contrast(rows, candidates, scale, coefficients, ids, summed=False)
        bound = (self.lam**self.q * (self.q * lse).exp() - (self.q * (lse - loss)).exp()) / self.q
        if bound.device.type == "cpu":
            require(
                torch.isfinite(bound).all(),
                lambda: (
                    f"RINCE has e^(q·cosine/temperature), which overflows {bound.dtype} at q={self.q} and temperature "
                    f"{float((-self.logit_scale.detach()).exp()):.3g}: lower q, or raise the temperature"
                ),
            )
        total: Tensor = (scale[self.shards.own_slice()] * bound).sum()
        return total
