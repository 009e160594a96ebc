"""Sub-center ArcFace, Deng et al. 2020: several centres a class, of which the nearest counts."""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import Never

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.labels import check_label_range, class_labels
from robustdml_ops.engine.rows.backends import cosines_at
from robustdml_ops.engine.validation import (
    check_finite_embeddings,
    check_finite_numbers,
    check_matrix,
    check_same_device,
    check_sizes,
)
from robustdml_ops.losses.arcface import ArcFaceLoss
from robustdml_ops.losses.families.classes import CentersLoss
from robustdml_ops.losses.families.margins import Margin
from robustdml_ops.losses.options import Backend, Reduction, SoftmaxOptions, shared

_SAMPLES = 1 << 14  # whose centres are gathered at a time


class SubCenterArcFaceLoss(CentersLoss, ArcFaceLoss):
    """ArcFace over classes of H centres: a sample's cosine with a class is that with the nearest of them.

        cos θ_k = max_h cos(x, w_kh),   and ℓ_i of these as in :class:`~robustdml_ops.losses.ArcFaceLoss`

    Wrong labels gather at centres of their own, and leave the dominant one clean; :meth:`get_outliers` finds them. Of
    centres that are equally near the first has the gradient.

    Source: Deng, Guo, Liu, Gong, Zafeiriou, "Sub-center ArcFace: Boosting Face Recognition by Large-scale Noisy Web
    Faces", ECCV 2020, Eq. 2 and section 3.3.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D. ``.W`` is a parameter (D, C·H), whose columns
        from k·H on are the H centres of class k.
    margin : float, Tensor or nn.Module
        m, in degrees. ``.margin`` holds it in radians, as pytorch-metric-learning's. A tensor (C,) has one for each
        class, a buffer, or a parameter if it is one. A module is called with embeddings and labels and returns (B,), in
        degrees; ``margins=`` of a call does, too.
    scale : float
        s > 0, an inverse temperature.
    sub_centers : int
        Number of centres of each class, H.
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
    >>> from robustdml_ops.losses import SubCenterArcFaceLoss
    >>> loss_function = SubCenterArcFaceLoss(num_classes=100, embedding_size=64, sub_centers=3)
    >>> embeddings, labels = torch.randn(32, 64), torch.randint(100, (32,))
    >>> loss_function(embeddings, labels).backward()
    >>> outliers, dominant_centers = loss_function.get_outliers(embeddings, labels, threshold=75)
    >>> dominant_centers.shape
    torch.Size([64, 100])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: Margin = 28.6,
        scale: float = 64,
        sub_centers: int = 3,
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
        check_sizes(num_classes=num_classes, sub_centers=sub_centers)
        self.sub_centers = self.centers = sub_centers
        super().__init__(num_classes, embedding_size, margin, scale, **shared(SoftmaxOptions, locals()))

    @torch.no_grad()
    def get_outliers(
        self, embeddings: Tensor, labels: Tensor, threshold: float = 75, return_dominant_centers: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Find samples that are far from the dominant centre of their class, the one nearest to most of its samples.

        Returns their places (n,) int64, sorted by label and place; and the dominant centres (D, C), columns of ``W`` in
        the type of the embeddings, 0 where a class has no sample.

        Parameters
        ----------
        embeddings, labels : Tensor
            (N, D) and (N,), such as those of a whole training set.
        threshold : float
            Angle in degrees above which a sample is an outlier.
        return_dominant_centers : bool
            Of no effect: pytorch-metric-learning 2.9 returns the centres either way, and scripts unpack them.

        Raises
        ------
        ValueError, IndexError
            As for a batch of the loss; classes that are sharded.
        """
        if self.shards.divided:
            raise ValueError(
                "get_outliers looks for the centres of all classes, and those of this loss are sharded: load its full "
                "state_dict into a loss of one process, and ask that one"
            )
        check_finite_numbers(threshold=threshold)
        check_matrix("embeddings", embeddings, columns=self.embedding_size)
        check_same_device(embeddings=embeddings, W=self.W)
        check_finite_embeddings(embeddings)
        labels = class_labels(labels, embeddings)
        check_label_range(labels, self.num_classes)
        if embeddings.dtype == torch.float64:
            self._widen()
        C, H, rows = self.num_classes, self.sub_centers, self._class_matrix().detach()
        own = labels[:, None] * H + torch.arange(H, device=labels.device)
        parts = zip(torch.split(embeddings, _SAMPLES), torch.split(own, _SAMPLES), strict=True)
        dtype = compute_dtype(embeddings, rows)
        cosines = torch.cat([cosines_at(rows, X.to(dtype), places, self.backend) for X, places in parts])  # (N, H)
        votes = torch.bincount(labels * H + cosines.argmax(1), minlength=C * H).view(C, H)
        dominant = votes.argmax(1)
        far = cosines.gather(1, dominant[labels, None]).squeeze(1) < math.cos(math.radians(threshold))
        outliers = far.nonzero().squeeze(1)
        outliers = outliers[labels[outliers].argsort(stable=True)]
        centers = rows[torch.arange(C, device=labels.device) * H + dominant].t()
        return outliers, centers.masked_fill(votes.sum(1) == 0, 0).to(embeddings.dtype)

    def _logits(self, embeddings: Tensor) -> Tensor:
        return super()._logits(embeddings).view(-1, self.num_classes, self.sub_centers).max(2).values

    def _logit_settings(self) -> dict[str, Any]:
        return {**super()._logit_settings(), "pooling": "max"}
