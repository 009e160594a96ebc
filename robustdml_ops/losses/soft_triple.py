"""SoftTriple, Qian et al. 2019: several centres per class."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from robustdml_ops.engine.validation import check_finite_numbers, check_positive, check_sizes
from robustdml_ops.losses.center_spread import center_spread
from robustdml_ops.losses.centers_by_class import CentersByClassLoss
from robustdml_ops.losses.families.metric_loss import Batch, Parts, no_initialisation
from robustdml_ops.losses.peer.distances import named
from robustdml_ops.losses.peer.package import ClassLossOptions, peer_losses
from robustdml_ops.ops import similarity


class SoftTripleLoss(CentersByClassLoss):
    """SoftTriple: a softmax over classes, each the soft maximum of its H centres.

        S'_ik = Σ_h softmax_h(s_ikh / γ) s_ikh
        ℓ_i   = −log( e^{λ(S'_iy − δ)} / (e^{λ(S'_iy − δ)} + Σ_{k≠y} e^{λ S'_ik}) )
        L     = mean_i ℓ_i + τ · R,   R = 1/(C·H·(H−1)) Σ_k Σ_{h<h'} ‖ŵ_kh − ŵ_kh'‖

    Parameters
    ----------
    num_classes, embedding_size
        As in :class:`~robustdml_ops.losses.ProxyNCALoss`, whose keyword arguments this loss has, too. ``.fc`` is a
        parameter (D, C·H), whose columns from k·H on are the H centres of class k.
    centers_per_class : int
        H.
    la : float
        λ > 0.
    gamma : float
        γ > 0, a temperature: small is close to the maximum. The papers' formulas have 1/γ in its place, and so has the
        attribute ``.gamma``, as pytorch-metric-learning's.
    margin : float
        δ.
    regularizer_weight : float
        τ ≥ 0: draws centres of a class that the data does not tell apart into one. The authors take 0.2.

    Notes
    -----
    R takes O(C·H²) memory and O(C·H²·D) time: centres of different classes never meet. It belongs to no sample, so
    ``reduction="none"`` gives the ℓ_i alone, for filters and weights; add ``regularizer()`` then. Precision, and the
    layout of ``.fc``, are those of :class:`~robustdml_ops.losses.NormalizedSoftmaxLoss`.

    Source: Qian, Shang, Sun, Hu, Li, Jin, "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019,
    and Liu et al. (PRISM), Eqs. 18 and 19.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import SoftTripleLoss
    >>> loss_function = SoftTripleLoss(num_classes=100, embedding_size=64, centers_per_class=3, regularizer_weight=0.2)
    >>> loss_function(torch.randn(32, 64), torch.randint(100, (32,))).backward()
    >>> loss_function.fc.grad.shape
    torch.Size([64, 300])
    """

    centers_name = "fc"

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        la: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        *,
        regularizer_weight: float = 0.0,
        **options: Unpack[ClassLossOptions],
    ) -> None:
        check_finite_numbers(margin=margin, regularizer_weight=regularizer_weight)
        self.regularizer_weight = regularizer_weight  # first: the names of the sub-losses ask for it
        super().__init__(num_classes, embedding_size, **options)
        check_sizes(centers_per_class=centers_per_class)
        if not isinstance(self.distance, str) and not self.distance.is_inverted:
            raise ValueError(f"{named(self.distance)}: centres are pooled by similarity, take a similarity")
        check_positive(la=la, gamma=gamma)
        if not regularizer_weight >= 0:
            raise ValueError(f"regularizer_weight must not be negative, got {regularizer_weight}")
        self.centers_per_class = centers_per_class
        self.la = la
        self.gamma = 1 / gamma  # as in pytorch-metric-learning: of a temperature the inverse
        self.margin = margin
        self.fc = nn.Parameter(torch.empty(embedding_size, num_classes * centers_per_class))
        self.weight_init_func(self.fc)
        names = ["la", "gamma", "margin", "centers_per_class", "num_classes", "embedding_size"]
        self.add_to_recordable_attributes(list_of_names=names, is_stat=False)

    def get_default_weight_init_func(self) -> Any:
        """As the authors' code has it."""
        return kaiming_uniform

    def regularizer(self) -> Tensor:
        """τ·R, (), of the centres as they are; 0 for one centre per class."""
        return self.regularizer_weight * self.shards.total(center_spread(self._proxies(), self.num_classes))

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """S' of ``embeddings`` (B, D) with all classes, (B, C); materialises B×C×H."""
        if self._dense_reason() is not None:
            logits: Tensor = self._twin().get_logits(embeddings)
            return logits
        s = similarity(embeddings, self.fc.t()).reshape(-1, self.num_classes, self.centers_per_class)
        return (torch.softmax(s * self.gamma, dim=2) * s).sum(2)

    def _loss(self, batch: Batch) -> Tensor:
        loss = super()._loss(batch)
        if self.reduction == "none" or self.regularizer_weight == 0:
            return loss
        return loss + self.regularizer()

    def _parts(self, batch: Batch) -> Parts:
        return self._with_regularizer(super()._parts(batch))

    def _dense(self, batch: Batch, reason: str) -> Parts:
        return self._with_regularizer(super()._dense(batch, reason))

    def _with_regularizer(self, parts: Parts) -> Parts:
        if self.regularizer_weight == 0:
            return parts
        spread = {"losses": self.regularizer(), "indices": None, "reduction_type": "already_reduced"}
        return {**parts, "center_reg_loss": spread}

    def _sub_loss_names(self) -> list[str]:
        return ["loss", "center_reg_loss"] if self.regularizer_weight else ["loss"]

    def _centers_per_class(self) -> int:
        return self.centers_per_class

    def _twin(self) -> Any:
        settings = (self.centers_per_class, self.la, 1 / self.gamma, self.margin)
        twin = peer_losses.SoftTripleLoss(1, 1, *settings, distance=self.distance, weight_init_func=no_initialisation)
        twin.num_classes, twin.fc = self.num_classes, self.fc
        return twin

    def _logits(self) -> dict[str, Any]:
        of_label = -self.la * self.margin
        return {"scale": self.la, "target_bias": of_label, "pooling": "softmax", "gamma": 1 / self.gamma}


def kaiming_uniform(centers: Tensor) -> None:
    """Fill ``centers`` (D, C·H), in place."""
    nn.init.kaiming_uniform_(centers, a=math.sqrt(5))
