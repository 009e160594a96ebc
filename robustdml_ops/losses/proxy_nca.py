"""Proxy-NCA, Movshovitz-Attias et al. 2017."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_positive
from robustdml_ops.losses.families.classes import ClassFamilyLoss, ClassTerms
from robustdml_ops.losses.inputs import SoftmaxOptions
from robustdml_ops.ops import similarity
from robustdml_ops.ops.classes.plan import ClassFormula


class ProxyNCALoss(ClassFamilyLoss):
    """Proxy-NCA: a softmax over the squared distances of a sample to all proxies.

        ℓ_i = −log( e^{−t·d(x,p_y)} / Σ_k e^{−t·d(x,p_k)} ),   d(x,p) = ‖x̂ − p̂‖² = 2 − 2 cos(x,p)

    The log-sum-exp takes one sweep over the proxies, the gradients another; memory and precision are those of
    :class:`~robustdml_ops.losses.ProxyAnchorLoss`. Everything stays in log space: pytorch-metric-learning drops a
    sample whose probability underflows, which is most likely the one with a wrong label; elsewhere the numbers agree.

    Source: Movshovitz-Attias, Toshev, Leung, Ioffe, Singh, "No Fuss Distance Metric Learning using Proxies", ICCV 2017;
    Teh, DeVries, Taylor, "ProxyNCA++", ECCV 2020.

    Parameters
    ----------
    num_classes, embedding_size
        As in :class:`~robustdml_ops.losses.ProxyAnchorLoss`, whose keyword arguments this loss has, too.
    softmax_scale : float
        t > 0, an inverse temperature. 1 is the paper's; ProxyNCA++ takes 9.
    include_positive : bool
        Whether k = y stands in the denominator: True is a softmax, as ProxyNCA++ and most code has it; False the form
        of 2017, which is unbounded below, and 0 where a sample has no negative left.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: the loss, (). ``"none"``: one loss per sample, (B,), times its weight.
        ``"sum"``: the sum of what ``"none"`` gives.
    negative_correction : bool
        With a share: whether a class that was drawn counts for those that it stands for, the logarithmic correction.
        False: the form of Partial FC.
    label_smoothing : float
        ε in [0, 1]: the targets are (1 − ε) of the label and ε/C of each class, as those of ``F.cross_entropy``. Not
        beside ``negative_share``, ``drop_similar_negatives`` or ``include_positive=False``.
    weight : Tensor, optional
        (C,), ≥ 0: weights of the classes, as of ``F.cross_entropy``: ``"mean"`` divides by the sum of the samples'. A
        buffer. No gradient.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyNCALoss
    >>> loss_function = ProxyNCALoss(num_classes=1000, embedding_size=64, reduction="none")
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).shape
    torch.Size([32])
    """

    served_forms = ("squared", "cosine")
    default_form = "squared"
    recorded = ("softmax_scale", "num_classes")
    miner_weighs_anchors = True
    proxies: nn.Parameter

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1.0,
        *,
        include_positive: bool = True,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        check_positive(softmax_scale=softmax_scale)
        if not include_positive and num_classes < 2:
            raise ValueError(f"include_positive=False needs at least 2 classes, got num_classes={num_classes}")
        if not include_positive and self.label_smoothing:
            raise ValueError("label_smoothing with include_positive=False, which is no cross-entropy: leave one out")
        self.softmax_scale, self.include_positive = softmax_scale, include_positive
        self._add_class_matrix(num_classes)

    def _logits(self, embeddings: Tensor) -> Tensor:
        cosines = similarity(embeddings, self.proxies)
        return cosines if self._form() == "cosine" else 2 - 2 * cosines

    def _losses_of_sums(self, sums: ClassTerms, own: Tensor) -> Tensor:
        losses = super()._losses_of_sums(sums, own)
        if self.include_positive:
            return losses
        # Of a sample that is left without a negative.
        return losses.masked_fill(sums.lse == -torch.inf, 0)

    def _formula(self, margins: Tensor | None) -> ClassFormula:
        return ClassFormula(**self._logit_settings())

    def _logit_settings(self) -> dict[str, Any]:
        # −t·d = 2t·s − 2t, and the constant leaves with the difference of the two.
        per_cosine = 1 if self._form() == "cosine" else 2
        return {"scale": per_cosine * self.softmax_scale, "exclude_target": not self.include_positive}
