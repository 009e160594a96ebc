"""Proxy-Anchor, Kim et al. 2020."""

import torch
from torch import Tensor

from robustdml_ops.anchor.counting import count_labels
from robustdml_ops.label_sets import LabelSets
from robustdml_ops.losses.base import AnchorFamilyLoss
from robustdml_ops.ops import AnchorBiases
from robustdml_ops.validation import check_labels


class ProxyAnchorLoss(AnchorFamilyLoss):
    """Proxy-Anchor loss: each proxy pulls its hardest positives and pushes its hardest negatives of the batch.

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺} e^{−α(s(x,p)−δ)}) + 1/|P| Σ_p log(1 + Σ_{x∈X_p⁻} e^{α(s(x,p)+δ)})

    Parameters
    ----------
    num_classes, embedding_size : int
        C and D. ``.proxies`` is a parameter (C, D): give it to the optimiser, usually at 100 × the model's rate.
    margin : float
        δ.
    alpha : float
        α, > 0.
    reduction : {"mean", "none"}
        ``"mean"``: the loss, (). ``"none"``: its terms by proxy, (C,), whose sum is the loss.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``; None: the fastest that serves the device.

    Notes
    -----
    Value and both gradients come from one sweep over the proxies (``"none"``: from two); no matrix B×C is ever held.
    Similarities and sums are in float32 at least, whatever the inputs are; the result is float32 (float64 if the
    embeddings or proxies are).

    Source: Kim, Kim, Cho, Kwak, "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, Eq. 4.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyAnchorLoss
    >>> loss_function = ProxyAnchorLoss(num_classes=1000, embedding_size=64)
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> loss = loss_function(embeddings, torch.randint(1000, (32,)))
    >>> loss.backward()
    >>> embeddings.grad.shape, loss_function.proxies.grad.shape
    (torch.Size([32, 64]), torch.Size([1000, 64]))
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32,
        *,
        reduction: str = "mean",
        backend: str | None = None,
    ) -> None:
        super().__init__(num_classes, embedding_size, alpha, reduction, backend)
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor, sample_weights: Tensor | None = None) -> Tensor:
        """Loss of a batch.

        Parameters
        ----------
        embeddings : Tensor
            (B, D), floating point, any scale.
        labels : Tensor
            (B,) integers in 0 … C − 1.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the exponentials in both sums; differentiable where positive. A sample of weight 0 is
            absent: the loss is that of the batch without it.

        Returns
        -------
        Tensor
            () or (C,), see ``reduction``. An empty batch gives 0, connected to the graph.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN or inf (on a GPU, where a check would stall the
            stream, the loss is NaN).
        IndexError
            On the CPU, a label out of range (on a GPU a device-side assertion).
        """
        self._check(embeddings)
        labels = check_labels(labels, embeddings)
        log_weights, present = self._log_weights(sample_weights, embeddings)
        bias = self.alpha * self.margin + log_weights
        sets = LabelSets.of(labels)
        anchors = torch.full((), self.num_classes, device=embeddings.device)
        return self._reduce(embeddings, sets, AnchorBiases(bias, bias), count_labels(sets, present), anchors)
