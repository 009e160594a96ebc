"""CosFace, Wang et al. 2018: a margin on the label's cosine."""

from torch import Tensor
from typing_extensions import Unpack

from robustdml_ops.losses.families.margins import Margin, MarginSoftmaxLoss
from robustdml_ops.losses.inputs import SoftmaxOptions


class CosFaceLoss(MarginSoftmaxLoss):
    """CosFace: a softmax over cosines in which the label's must lead by a margin.

        ℓ_i = −log( e^{s(cos θ_y − m)} / (e^{s(cos θ_y − m)} + Σ_{k≠y} e^{s cos θ_k}) ),   θ_k the angle of x and w_k

    Source: Wang, Wang, Zhou, Ji, Gong, Zhou, Li, Liu, "CosFace: Large Margin Cosine Loss for Deep Face Recognition",
    CVPR 2018, Eq. 4.

    Parameters
    ----------
    num_classes, embedding_size, scale
        As in :class:`~robustdml_ops.losses.ArcFaceLoss`, whose keyword arguments and ``.avg_angle`` this loss has, too.
    margin : float, Tensor or nn.Module
        m, of the cosine; no unit. A tensor and a module as in :class:`~robustdml_ops.losses.ArcFaceLoss`.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import CosFaceLoss
    >>> loss_function = CosFaceLoss(num_classes=1000, embedding_size=64)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: Margin = 0.35,
        scale: float = 64,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, margin, scale, **options)

    def _moved(self, cosines: Tensor, margins: Tensor) -> Tensor:
        return cosines - margins
