"""Adaptive Proxy-Anchor, Phan et al.: the margin is learnt."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Never

from robustdml_ops.backends.dispatch import compute_dtype
from robustdml_ops.engine.plan import Plan
from robustdml_ops.engine.validation import NotFiniteError, check_choice, check_finite_numbers, check_matrix, require
from robustdml_ops.losses.families.anchor import AnchorFamilyLoss
from robustdml_ops.losses.families.class_matrix import StepRows
from robustdml_ops.losses.inputs import LossInputs
from robustdml_ops.losses.options import Backend, ClassMatrixOptions, Reduction, shared
from robustdml_ops.losses.peer.package import SubLosses
from robustdml_ops.ops import AnchorBiases
from robustdml_ops.ops.anchor.plan import anchor_plan


class AdaptiveProxyAnchorLoss(AnchorFamilyLoss):
    """Proxy-Anchor whose margin is a parameter, one for all classes or one for each.

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺} e^{−α(s(x,p)−m_x)}) + 1/|P| Σ_p log(1 + Σ_{x∈X_p⁻} e^{α(s(x,p)+m_x)})
            + λ / mean(m)

    A batch raises ValueError when mean(m) ≤ 0 (on a GPU a device-side assertion); an empty one gives λ/mean(m).

    Source: Phan et al., "Adaptive Proxy Anchor Loss for Deep Metric Learning", Eqs. 2–4.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D. ``.proxies`` is a parameter (C, D).
    margin : float
        m₀ > 0, where the margins start. ``.margins`` is a parameter of shape (1,), or (C,) if ``per_class``.
    alpha : float
        Scale α > 0 of the exponents: the larger, the more the hardest samples count.
    per_class : bool
        A margin for each class. The paper recommends one for all (its Table 2), the default.
    regularization : float
        λ ≥ 0. λ/mean(m) grows as the margins shrink: it keeps them up.
    negative_margin : {"sample", "proxy"}
        Whose margin stands in the negative term: the sample's class (the paper's Eq. 2), or the proxy's (the authors'
        code). The same if there is one margin.
    reduction : {"mean", "none"}
        ``"mean"``: the loss, (). ``"none"``: its terms by proxy, (C,), over which λ/mean(m) is spread.
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
    **unknown
        Refused, with the name that was probably meant.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import AdaptiveProxyAnchorLoss
    >>> loss_function = AdaptiveProxyAnchorLoss(num_classes=10, embedding_size=4)
    >>> loss_function(torch.randn(8, 4), torch.arange(8)).backward()
    """

    parts = (*AnchorFamilyLoss.parts, "margin_reg_loss")

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32,
        *,
        per_class: bool = False,
        regularization: float = 1.0,
        negative_margin: Literal["sample", "proxy"] = "sample",
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
        **unknown: Never,
    ) -> None:
        super().__init__(num_classes, embedding_size, margin, alpha, **shared(ClassMatrixOptions, locals()))
        check_finite_numbers(regularization=regularization)
        if not margin > 0:
            raise ValueError(f"margin must be positive, got {margin}: λ/mean(m) has a pole at 0")
        if not regularization >= 0:
            raise ValueError(f"regularization must not be negative, got {regularization}")
        check_choice(("sample", "proxy"), negative_margin=negative_margin)
        self.regularization, self.negative_margin = regularization, negative_margin
        self.margins = nn.Parameter(torch.full((num_classes if per_class else 1,), float(margin)))
        self.per_class = per_class

    def class_dimensions(self) -> dict[str, int]:
        """Parameters with entries for each class, and the dimension that counts the classes."""
        return {**super().class_dimensions(), **({"margins": 0} if self.per_class else {})}

    def fill_parameter(self, name: str, values: Tensor) -> None:
        """Fill a parameter with its initial values, in place."""
        if name == "margins":
            values.fill_(self.margin)
        else:
            super().fill_parameter(name, values)

    def _signature(self, inputs: LossInputs) -> tuple[Sequence[Any], tuple[Any, ...]]:
        return super()._signature(inputs._replace(margins=self._parameters.get("margins")))

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        embeddings, proxies, labels, _, _, weights, margins, _ = tensors
        of_proxies = self.per_class and self.negative_margin == "proxy"
        if not self._is_plain(tensors) or margins is None or of_proxies:
            return None
        settings = (self.alpha, 0.0, self.backend, margins, self.regularization)
        return anchor_plan(embeddings, proxies, labels, weights, *settings)

    def _fused_loss(self, inputs: LossInputs) -> Tensor:
        regularizer = self._regularizer(inputs)
        loss = super()._fused_loss(inputs)
        if self.reduction != "none":
            return loss + regularizer
        return loss + self.shards.sum_gradient(regularizer) / self.num_classes

    def _sub_losses(self, inputs: LossInputs) -> SubLosses:
        regularizer = {"losses": self._regularizer(inputs), "indices": None, "reduction_type": "already_reduced"}
        return {**super()._sub_losses(inputs), "margin_reg_loss": regularizer}

    def _regularizer(self, inputs: LossInputs) -> Tensor:
        """λ/mean(m), () in the compute type."""
        check_matrix("embeddings", inputs.embeddings)
        margins = self.shards.local_shard(self.margins).to(compute_dtype(inputs.embeddings, self.proxies))
        mean = self.shards.sum_terms(margins.sum()) / self.num_classes if self.per_class else margins.mean()
        require(
            mean > 0,
            lambda: (
                f"mean(margins) = {float(mean.detach()):.4g}, and λ/mean(m) has a pole at 0: lower the rate of "
                ".margins or raise regularization"
            ),
            NotFiniteError,
        )
        return self.regularization / mean

    def _bias(self) -> float:
        return 0.0

    def _biases(self, labels: Tensor, log_weights: Tensor, rows: StepRows) -> AnchorBiases:
        scaled = self.alpha * self.shards.local_shard(self.margins).to(log_weights.dtype)
        if self.per_class:
            if labels.dim() == 2:
                raise ValueError(
                    "labels (B, K) beside per_class=True: a sample of several classes has no margin of its class; take "
                    "labels (B,), or per_class=False"
                )
            of_sample = self.shards.gather_at_labels(scaled, labels)
        else:
            of_sample = self.shards.sum_gradient(scaled).expand(len(labels))
        if self.negative_margin == "sample" or not self.per_class:
            return AnchorBiases(of_sample + log_weights, of_sample + log_weights)
        of_proxy = scaled if rows.drawn is None else scaled[rows.drawn.classes]
        return AnchorBiases(of_sample + log_weights, log_weights, of_proxy)
