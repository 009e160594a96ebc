"""SoftTriple, Qian et al. 2019: several centres per class."""

import math
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Never

from robustdml_ops.backends.dispatch import has_no_values, without_autocast
from robustdml_ops.engine.rows.lengths import all_within_reach, unit_rows
from robustdml_ops.engine.validation import check_finite_numbers, check_positive, check_sizes
from robustdml_ops.losses.families.classes import CentersLoss
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, Reduction, SoftmaxOptions, shared
from robustdml_ops.losses.peer.package import SubLosses, named
from robustdml_ops.ops import similarity
from robustdml_ops.ops.classes.plan import ClassFormula


class SoftTripleLoss(CentersLoss):
    """SoftTriple: a softmax over classes, each the soft maximum of its H centres.

        S'_ik = Σ_h softmax_h(s_ikh / γ) s_ikh
        ℓ_i   = −log( e^{λ(S'_iy − δ)} / (e^{λ(S'_iy − δ)} + Σ_{k≠y} e^{λ S'_ik}) )
        L     = mean_i ℓ_i + τ · R,   R = 1/(C·H·(H−1)) Σ_k Σ_{h<h'} ‖ŵ_kh − ŵ_kh'‖

    R takes O(C·H²) memory and O(C·H²·D) time. It belongs to no sample: ``reduction="none"`` gives the ℓ_i alone; add
    ``regularizer()`` then.

    Source: Qian, Shang, Sun, Hu, Li, Jin, "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", ICCV 2019,
    and Liu et al. (PRISM), Eqs. 18 and 19.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D.
    centers_per_class : int
        Number of centres of each class, H. ``.fc`` is a parameter (D, C·H), whose columns from k·H on are the H centres
        of class k.
    la, gamma : float
        Scale λ > 0 of the logits; temperature γ > 0, where small is close to the maximum. The attribute ``.gamma`` is
        1/γ, as pytorch-metric-learning's.
    margin : float
        Margin δ, subtracted from the similarity to the label's class.
    regularizer_weight : float
        τ ≥ 0: draws centres of a class that the data does not tell apart into one. The authors take 0.2.
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
    >>> from robustdml_ops.losses import SoftTripleLoss
    >>> loss_function = SoftTripleLoss(num_classes=100, embedding_size=64, centers_per_class=3, regularizer_weight=0.2)
    >>> loss_function(torch.randn(32, 64), torch.randint(100, (32,))).backward()
    """

    recordable = ("la", "gamma", "margin", "centers_per_class", "num_classes", "embedding_size")
    matrix_name = "fc"
    fc: nn.Parameter

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
        check_finite_numbers(margin=margin, regularizer_weight=regularizer_weight)
        if regularizer_weight:  # first: the base class asks for the names
            self.parts = ("loss", "center_reg_loss")
        super().__init__(num_classes, embedding_size, **shared(SoftmaxOptions, locals()))
        check_sizes(centers_per_class=centers_per_class)
        if not isinstance(self.distance, str) and not self.distance.is_inverted:
            raise ValueError(f"{named(self.distance)}: centres are pooled by similarity, take a similarity")
        check_positive(la=la, gamma=gamma)
        if not regularizer_weight >= 0:
            raise ValueError(f"regularizer_weight must not be negative, got {regularizer_weight}")
        self.centers_per_class = self.centers = centers_per_class
        self.la = la
        self.regularizer_weight = regularizer_weight
        self.gamma = 1 / gamma  # as in pytorch-metric-learning: of a temperature the inverse
        self.margin = margin
        self._add_class_matrix(num_classes * centers_per_class)

    def get_default_weight_init_func(self) -> Any:
        """As the authors' code has it."""
        return partial(nn.init.kaiming_uniform_, a=math.sqrt(5))

    def regularizer(self) -> Tensor:
        """τ·R, (), of the centres as they are; 0 for one centre per class."""
        return self.regularizer_weight * self.shards.sum_terms(center_spread(self._shard()[0], self.num_classes))

    def _logits(self, embeddings: Tensor) -> Tensor:
        s = similarity(embeddings, self.fc.t()).reshape(-1, self.num_classes, self.centers_per_class)
        return (torch.softmax(s * self.gamma, dim=2) * s).sum(2)

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        loss = super()._fused_loss(inputs)
        if self.reduction == "none" or self.regularizer_weight == 0:
            return loss
        return loss + self.regularizer()

    def _regularized(self, sub_losses: SubLosses) -> SubLosses:
        if self.regularizer_weight:
            spread = {"losses": self.regularizer(), "indices": None, "reduction_type": "already_reduced"}
            sub_losses["center_reg_loss"] = spread
        return super()._regularized(sub_losses)

    def _formula(self, margins: Tensor | None) -> ClassFormula | None:
        if self.regularizer_weight:
            return None
        return ClassFormula(self.la, self.margin, pooling="softmax", gamma=1 / self.gamma)

    def _logit_settings(self) -> dict[str, Any]:
        of_label = -self.la * self.margin
        return {"scale": self.la, "target_bias": of_label, "pooling": "softmax", "gamma": 1 / self.gamma}


def center_spread(centers: Tensor, num_classes: int) -> Tensor:
    """Σ_k Σ_{h<h'} √(2 − 2 cos(c_kh, c_kh')) / (C·H·(H−1)), (); 0 for H = 1."""
    H = centers.shape[1]
    with without_autocast(centers.device):
        W = centers if centers.dtype == torch.float64 else centers.float()
        # Products of the raw centres need no copy of the parameter; unit rows where they overflow or lose digits.
        products = W @ W.mT
        squared = products.diagonal(dim1=1, dim2=2)
        if W.device.type != "cpu" or has_no_values(W) or not all_within_reach(squared, 2):
            W = unit_rows(W.flatten(0, 1)).view(W.shape)
            products = W @ W.mT
            squared = products.diagonal(dim1=1, dim2=2)
        empty = squared == 0
        inverse_norm = torch.where(empty, 0.0, squared.masked_fill(empty, 1).rsqrt())
        upper = torch.ones(H, H, dtype=torch.bool, device=W.device).triu(1)
        apart = 2 - 2 * products * inverse_norm[:, :, None] * inverse_norm[:, None, :]
        # Centres nearer than √(8ε) count as equal: the root has no derivative at 0.
        counted = upper & (apart > 8 * torch.finfo(W.dtype).eps)
        return torch.where(counted, apart.masked_fill(~counted, 1).sqrt(), 0.0).sum() / (
            num_classes * max(1, H * (H - 1))
        )
