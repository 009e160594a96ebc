"""Normalised softmax, Zhai and Wu 2019."""

import torch
from torch import Tensor, nn

from robustdml_ops.losses.class_family import ClassFamilyLoss
from robustdml_ops.ops import ClassLSE, class_lse, similarity
from robustdml_ops.validation import check_positive


class NormalizedSoftmaxLoss(ClassFamilyLoss):
    """Cross-entropy of the cosines with one weight vector per class, divided by a temperature.

        ℓ_i = −log( e^{cos(x,w_y)/T} / Σ_k e^{cos(x,w_k)/T} )

    Parameters
    ----------
    num_classes, embedding_size, reduction, backend
        As in :class:`~robustdml_ops.losses.ProxyNCALoss`. ``.W`` is a parameter (D, C): one column per class.
    temperature : float
        T > 0.

    Notes
    -----
    Proxy-NCA with ``softmax_scale`` 1/(2T) is the same loss. ``.W`` keeps the columns' memory together, (C, D) seen
    transposed, so that a sweep over the classes reads it as it lies and its gradient is not copied; ``state_dict`` and
    optimisers do not mind. Precision, speed and memory are those of :class:`~robustdml_ops.losses.ProxyNCALoss`.

    Source: Zhai, Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import NormalizedSoftmaxLoss
    >>> loss_function = NormalizedSoftmaxLoss(num_classes=1000, embedding_size=64)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    >>> loss_function.W.grad.shape
    torch.Size([64, 1000])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        *,
        reduction: str = "mean",
        backend: str | None = None,
    ) -> None:
        super().__init__(num_classes, embedding_size, reduction, backend)
        check_positive(temperature=temperature)
        self.temperature = temperature
        self.W = nn.Parameter(torch.empty(num_classes, embedding_size).t())
        nn.init.normal_(self.W)

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Cosines of ``embeddings`` (B, D) with all classes, by the temperature: (B, C), materialised."""
        return similarity(embeddings, self.W.t()) / self.temperature

    def _class_lse(self, embeddings: Tensor, labels: Tensor) -> ClassLSE:
        return class_lse(embeddings, self.W.t(), labels, scale=1 / self.temperature, backend=self.backend)
