"""ArcFace, Deng et al. 2019: a margin on the angle between a sample and its class."""

import math
import warnings
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import Never

from robustdml_ops.losses.families.margins import Margin, MarginSoftmaxLoss
from robustdml_ops.losses.options import Backend, Reduction, SoftmaxOptions, shared


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
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D. ``.W`` is a parameter (D, C): one column for each class.
    margin : float, Tensor or nn.Module
        m, in degrees. ``.margin`` holds it in radians, as pytorch-metric-learning's. A tensor (C,) has one for each
        class, a buffer, or a parameter if it is one: such as 28.6·(n/n.min())^(−1/4) for classes of n samples. A
        module is called with embeddings and labels and returns (B,), in degrees; ``margins=`` of a call does, too.
    scale : float
        s > 0, an inverse temperature.
    reduction : {"mean", "none"}
        ``"mean"``: the loss, (). ``"none"``: one loss per sample, (B,), times its weight.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.
    ignore_index : int, optional
        Samples with this label are absent, as samples of weight 0 are; on pairs rows of ``ref_emb``, too.
    distance : str or object, optional
        Name of a distance, such as "cosine", or a distance of pytorch-metric-learning, see docs/compatibility.md. None:
        the cosine, or the loss's own.
    reducer : object, optional
        A reducer of pytorch-metric-learning; see docs/compatibility.md.
    embedding_regularizer : object, optional
        A regulariser of pytorch-metric-learning, of the embeddings.
    embedding_reg_weight : float
        Weight of ``embedding_regularizer``. Default 1.0.
    collect_stats : bool, optional
        Whether pytorch-metric-learning's distance and reducer keep their statistics.
    weight_regularizer : object, optional
        A regulariser of pytorch-metric-learning, of the class matrix.
    weight_reg_weight : float
        Weight of ``weight_regularizer``. Default 1.0.
    weight_init_func : callable, optional
        Fills the class matrix in place. None: as pytorch-metric-learning, ``normal_`` or in Proxy-Anchor losses
        ``kaiming_normal_(mode="fan_out")``.
    negative_share : float
        In (0, 1]: the share of the classes outside the batch that a training step computes with, drawn anew each step,
        see docs/large-classes.md; 1: all. Default 1.0.
    negative_seed : int
        Seed ≥ 0 of the draws; seed and step are in the ``state_dict``. Default 0.
    drop_similar_negatives : float or "own", optional
        In (−1, 1]: negatives whose cosine with the sample exceeds this are left out, as they may be of its class, with
        a wrong label or under another name. "own": the limit of each sample is its cosine with its own class, or with
        the nearest of several, and at least t_C of docs/equations.md. The selection is constant in the gradients. None:
        all negatives stay.
    first_embeddings : int
        Above 0: a row of the class matrix that no sample has met begins in training as the first embedding of its
        class, of length 1, in the step that meets it, and as the mean direction of the first few if this is above 1,
        which helps where labels are wrong. ``.taken`` (C,) counts them. See
        :func:`~robustdml_ops.losses.start_class_matrix`. Default 0.
    dtype : torch.dtype, optional
        Type in which the class matrix is made: ``torch.bfloat16`` takes two bytes an element at all times, where
        ``loss.bfloat16()`` takes six while it converts. None: PyTorch's default.
    negative_correction : bool
        With a ``negative_share``: whether a class that was drawn counts for those that it stands for, the logarithmic
        correction. False: the form of Partial FC. Default True.
    label_smoothing : float
        ε in [0, 1]: the targets are (1 − ε) of the label and ε/C of each class, as those of ``F.cross_entropy``. Not
        beside ``negative_share`` or ``drop_similar_negatives``. Default 0.0.
    weight : Tensor, optional
        (C,), ≥ 0: weights of the classes, as of ``F.cross_entropy``: ``"mean"`` divides by the sum of the samples'. A
        buffer. No gradient. None: 1.
    **unknown
        Refused, with the name that was probably meant.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ArcFaceLoss
    >>> loss_function = ArcFaceLoss(num_classes=1000, embedding_size=64, margin=28.6, scale=64)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    """

    margin_unit = math.radians(1)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: Margin = 28.6,
        scale: float = 64,
        *,
        reduction: Reduction = "mean",
        backend: Backend | None = None,
        ignore_index: int | None = None,
        distance: Any = None,
        reducer: Any = None,
        embedding_regularizer: Any = None,
        embedding_reg_weight: float = 1.0,
        collect_stats: bool | None = None,
        weight_regularizer: Any = None,
        weight_reg_weight: float = 1.0,
        weight_init_func: Any = None,
        negative_share: float = 1.0,
        negative_seed: int = 0,
        drop_similar_negatives: float | Literal["own"] | None = None,
        first_embeddings: int = 0,
        dtype: torch.dtype | None = None,
        negative_correction: bool = True,
        label_smoothing: float = 0.0,
        weight: Tensor | None = None,
        **unknown: Never,
    ) -> None:
        super().__init__(num_classes, embedding_size, margin, scale, **shared(SoftmaxOptions, locals()))

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
