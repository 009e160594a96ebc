"""The sigmoid loss of pairs, SigLIP."""

import torch
from torch import Tensor, nn

from robustdml_ops.engine.validation import check_finite_numbers
from robustdml_ops.losses.families.contrast import TwoTowerLoss
from robustdml_ops.losses.options import Backend
from robustdml_ops.ops.pairs.backends import ContrastOptions
from robustdml_ops.ops.pairs.formula import PairFormula


class SigmoidLoss(TwoTowerLoss):
    """A logistic loss for every pair of rows of two towers, with a learnt temperature and bias: the loss of SigLIP.

        L = 1/B Σ_i (log(1 + e^{−z_ii}) + Σ_{j≠i} log(1 + e^{z_ij})),    z_ij = e^logit_scale s_ij + logit_bias

    Value and all gradients take one sweep, 6·B²·D flops, on shards as :class:`~robustdml_ops.losses.InfoNCELoss`.

    Source: Zhai, Mustafa, Kolesnikov, Beyer, "Sigmoid Loss for Language Image Pre-Training", ICCV 2023, Eq. 1.

    Parameters
    ----------
    temperature, bias : float
        Initial values of e^−logit_scale, > 0, and of ``logit_bias``. Both parameters are learnt;
        ``requires_grad_(False)`` fixes one.
    max_scale : float, optional
        A training step first clamps ``logit_scale`` so that e^logit_scale is at most this. None: no limit.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import SigmoidLoss
    >>> SigmoidLoss(temperature=1.0, bias=0.0)(torch.eye(2), torch.eye(2)).detach()  # log(1 + e⁻¹) + log 2
    tensor(1.0064)
    """

    def __init__(
        self,
        temperature: float = 0.1,
        bias: float = -10.0,
        *,
        max_scale: float | None = None,
        backend: Backend | None = None,
    ) -> None:
        super().__init__(temperature, max_scale, backend)
        check_finite_numbers(bias=bias)
        self.logit_bias = nn.Parameter(torch.tensor(float(bias)))

    def _formula(self) -> PairFormula | None:
        return PairFormula(ContrastOptions("sigmoid"))

    def _fused_loss(
        self,
        embeddings: Tensor,
        others: Tensor,
        sample_weights: Tensor | None,
        negatives: Tensor | None,
        ids: Tensor | None,
    ) -> Tensor:
        scale = self._scale(embeddings, others, sample_weights)
        coefficients = self._coefficients(embeddings, others, self.shards.local_shard(self.logit_bias))
        return self.shards.sum_terms(self._contrast(embeddings, others, scale, coefficients, ids, "sigmoid").total)
