"""Normalised softmax, Zhai and Wu 2019."""

from typing import Any

from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_positive
from robustdml_ops.losses.families.classes import ClassFamilyLoss
from robustdml_ops.losses.inputs import SoftmaxOptions
from robustdml_ops.losses.peer.package import peer_distances
from robustdml_ops.ops import similarity
from robustdml_ops.ops.classes.plan import ClassFormula


class NormalizedSoftmaxLoss(ClassFamilyLoss):
    """Cross-entropy of the cosines with one weight vector per class, divided by a temperature.

        ℓ_i = −log( e^{cos(x,w_y)/T} / Σ_k e^{cos(x,w_k)/T} )

    Proxy-NCA with ``softmax_scale`` 1/(2T) is the same loss, with the same precision, speed and memory.

    Source: Zhai, Wu, "Classification is a Strong Baseline for Deep Metric Learning", BMVC 2019.

    Parameters
    ----------
    num_classes, embedding_size : int
        C and D. ``.W`` is a parameter (D, C): one column per class. This loss has the keyword arguments of
        :class:`~robustdml_ops.losses.ProxyNCALoss`.
    temperature : float
        Temperature T > 0, by which the cosines are divided.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import NormalizedSoftmaxLoss
    >>> loss_function = NormalizedSoftmaxLoss(num_classes=1000, embedding_size=64)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    """

    served_forms = ("cosine", "squared")
    recorded = ("embedding_size", "num_classes", "temperature")
    matrix_name = "W"
    columns = True
    W: nn.Parameter

    def __init__(
        self, num_classes: int, embedding_size: int, temperature: float = 0.05, **options: Unpack[SoftmaxOptions]
    ) -> None:
        super().__init__(num_classes, embedding_size, **options)
        check_positive(temperature=temperature)
        self.temperature = temperature
        self._add_class_matrix(num_classes)

    def get_default_distance(self) -> Any:
        """Return the peer's default: of unit vectors, and so the cosine."""
        return peer_distances.DotProductSimilarity()

    def _logits(self, embeddings: Tensor) -> Tensor:
        cosines = similarity(embeddings, self.W.t())
        return (cosines if self._form() == "cosine" else 2 * cosines - 2) / self.temperature

    def _formula(self, margins: Tensor | None) -> ClassFormula:
        return ClassFormula(**self._logit_settings())

    def _logit_settings(self) -> dict[str, Any]:
        # −d = 2s − 2, and the constant leaves with the difference of the two.
        per_cosine = 2 if self._form() == "squared" else 1
        return {"scale": per_cosine / self.temperature}
