"""Sub-center ArcFace, Deng et al. 2020: several centres a class, of which the nearest counts."""

import math
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

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
from robustdml_ops.losses.inputs import SoftmaxOptions

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
    num_classes, embedding_size, margin, scale
        As in :class:`~robustdml_ops.losses.ArcFaceLoss`, whose keyword arguments this loss has, too. ``.W`` is a
        parameter (D, C·H), whose columns from k·H on are the H centres of class k.
    sub_centers : int
        Number of centres of each class, H.

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
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        check_sizes(num_classes=num_classes, sub_centers=sub_centers)
        self.sub_centers = self.centers = sub_centers
        super().__init__(num_classes, embedding_size, margin, scale, **options)

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
