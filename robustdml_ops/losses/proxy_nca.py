"""Proxy-NCA, Movshovitz-Attias et al. 2017."""

import torch
from torch import Tensor, nn

from robustdml_ops.losses.class_family import ClassFamilyLoss
from robustdml_ops.ops import ClassLSE, class_lse, similarity
from robustdml_ops.validation import check_positive


class ProxyNCALoss(ClassFamilyLoss):
    """Proxy-NCA: a softmax over the squared distances of a sample to all proxies.

        ℓ_i = −log( e^{−t·d(x,p_y)} / Σ_k e^{−t·d(x,p_k)} ),   d(x,p) = ‖x̂ − p̂‖² = 2 − 2 cos(x,p)

    Parameters
    ----------
    num_classes, embedding_size : int
        C and D. ``.proxies`` is a parameter (C, D): give it to the optimiser, usually at 100 × the model's rate.
    softmax_scale : float
        t > 0, an inverse temperature. 1 is the paper's; ProxyNCA++ takes 9.
    include_positive : bool
        Whether k = y stands in the denominator: True is a softmax, as ProxyNCA++ and most code has it; False the form
        of 2017, which is unbounded below.
    reduction : {"mean", "none"}
        ``"mean"``: the loss, (). ``"none"``: one loss per sample, (B,), times its weight.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``; None: the fastest that serves the device.

    Notes
    -----
    The log-sum-exp takes one sweep over the proxies, the gradients another; no matrix B×C is ever held. Similarities
    and sums are in float32 at least, whatever the inputs are; the result is float32 (float64 if the embeddings or
    proxies are).

    Everything stays in log space. pytorch-metric-learning takes the logarithm of the softmax's own values, and a sample
    whose probability underflows is dropped from sum and mean: exactly the sample whose label is most likely wrong. Here
    no sample is dropped; elsewhere the numbers agree.

    Source: Movshovitz-Attias, Toshev, Leung, Ioffe, Singh, "No Fuss Distance Metric Learning using Proxies", ICCV 2017;
    Teh, DeVries, Taylor, "ProxyNCA++", ECCV 2020.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyNCALoss
    >>> loss_function = ProxyNCALoss(num_classes=1000, embedding_size=64, reduction="none")
    >>> losses = loss_function(torch.randn(32, 64), torch.randint(1000, (32,)))
    >>> losses.shape
    torch.Size([32])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        softmax_scale: float = 1.0,
        *,
        include_positive: bool = True,
        reduction: str = "mean",
        backend: str | None = None,
    ) -> None:
        super().__init__(num_classes, embedding_size, reduction, backend)
        check_positive(softmax_scale=softmax_scale)
        if not include_positive and num_classes < 2:
            raise ValueError(f"include_positive=False needs at least 2 classes, got num_classes={num_classes}")
        self.softmax_scale = softmax_scale
        self.include_positive = include_positive
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_size))
        nn.init.normal_(self.proxies)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Squared distances of ``embeddings`` (B, D) to all proxies, (B, C), materialised: the least is the nearest."""
        return 2 - 2 * similarity(embeddings, self.proxies)

    def _class_lse(self, embeddings: Tensor, labels: Tensor) -> ClassLSE:
        # −t·d = 2t·s − 2t, and the constant leaves with the difference of the two.
        return class_lse(
            embeddings,
            self.proxies,
            labels,
            scale=2 * self.softmax_scale,
            exclude_target=not self.include_positive,
            backend=self.backend,
        )
