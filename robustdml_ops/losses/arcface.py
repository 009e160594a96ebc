"""ArcFace, Deng et al. 2019: a margin on the angle between a sample and its class."""

import math
import warnings

import torch
from torch import Tensor

from robustdml_ops.losses.families.margins import Margin, MarginSoftmaxLoss


class ArcFaceLoss(MarginSoftmaxLoss):
    """ArcFace: a softmax over cosines in which the angle with the label's class is enlarged by a margin.

        ℓ_i = −log( e^{s f(θ_y)} / (e^{s f(θ_y)} + Σ_{k≠y} e^{s cos θ_k}) ),   θ_k the angle of x and w_k
        f(θ) = cos(θ + m) where θ ≤ π − m,  cos θ − m sin m above

    Gradients are finite at every angle; near θ_y = 0 a cosine's rounding error e is one of e·sin m / sin θ in f. With
    ``collect_stats=True`` ``.avg_angle`` is the mean angle θ_y of the last batch, in degrees, without the margin.

    Source: Deng, Guo, Xue, Zafeiriou, "ArcFace: Additive Angular Margin Loss for Deep Face Recognition", CVPR 2019,
    Eq. 3; the part above π − m is the authors' code's.

    Parameters
    ----------
    num_classes, embedding_size
        As in :class:`~robustdml_ops.losses.NormalizedSoftmaxLoss`, whose keyword arguments this loss has, too.
    margin : float, Tensor or nn.Module
        m, in degrees. ``.margin`` holds it in radians, as pytorch-metric-learning's. A tensor (C,) has one for each
        class, a buffer, or a parameter if it is one: such as 28.6·(n/n.min())^(−1/4) for classes of n samples. A
        module is called with embeddings and labels and returns (B,), in degrees; ``margins=`` of a call does, too.
    scale : float
        s > 0, an inverse temperature.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ArcFaceLoss
    >>> loss_function = ArcFaceLoss(num_classes=1000, embedding_size=64, margin=28.6, scale=64)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    """

    margin_unit = math.radians(1)
    margin_kind = "angle"

    def _set_margin(self, margin: Margin) -> None:
        super()._set_margin(margin)
        if isinstance(margin, float | int) and 0 < margin < 1:
            warnings.warn(
                f"margin={margin} is in degrees here, almost none: where other code has 0.5, in radians, take 28.6",
                stacklevel=3,
            )

    def _moved(self, cosines: Tensor, margins: Tensor) -> Tensor:
        return angular_margin(cosines, margins)


def angular_margin(cosines: Tensor, margins: Tensor) -> Tensor:
    """cos(θ + m) where θ ≤ π − m, and cos θ − m·sin m above, where cos(θ + m) would rise again; m () or (B,)."""
    with torch.no_grad():
        below = torch.acos(cosines.clamp(-1, 1)) <= math.pi - margins
    return torch.where(below, cosine_of_sum(cosines, margins), cosines - margins * margins.sin())


def cosine_of_sum(cosines: Tensor, angles: Tensor) -> Tensor:
    """cos(θ + angle) for cos θ (B,) and angles () or (B,) in radians."""
    with torch.no_grad():
        parallel = cosines.abs() >= 1
    # d sin θ/d cos θ = −cot θ has a pole where the vectors are parallel: there the sine is a constant 0.
    # (1 − c)(1 + c) keeps the digits near ±1 that 1 − c² would lose.
    squares = ((1 - cosines) * (1 + cosines)).masked_fill(parallel, 1)
    sines = squares.sqrt().masked_fill(parallel, 0)
    return cosines * angles.cos() - sines * angles.sin()
