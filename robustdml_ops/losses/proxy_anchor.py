"""Proxy-Anchor, Kim et al. 2020."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from typing_extensions import Never

from robustdml_ops.engine.plan import Plan
from robustdml_ops.losses.families.anchor import AnchorFamilyLoss
from robustdml_ops.losses.options import Backend, ClassMatrixOptions, Reduction, shared
from robustdml_ops.ops.anchor.gpu_plan import anchor_gpu_plan
from robustdml_ops.ops.anchor.plan import anchor_plan


class ProxyAnchorLoss(AnchorFamilyLoss):
    """Proxy-Anchor loss: each proxy pulls its hardest positives and pushes its hardest negatives of the batch.

        L = 1/|P⁺| Σ_{p∈P⁺} log(1 + Σ_{x∈X_p⁺} e^{−α(s(x,p)−δ)}) + 1/|P| Σ_p log(1 + Σ_{x∈X_p⁻} e^{α(s(x,p)+δ)})

    Value and both gradients come from one sweep over the proxies (``"none"``: from two); no matrix B×C is ever held.
    Similarities, sums and the result are in float32 at least, in float64 if embeddings or proxies are. With
    ``drop_similar_negatives`` positives stay, and so do the divisors |P⁺| and |P|.

    Source: Kim, Kim, Cho, Kwak, "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, Eq. 4.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D. ``.proxies`` is a parameter (C, D): give it to the optimiser,
        usually at 100 × the model's rate.
    margin, alpha : float
        Margin δ of the cosines: positives are pulled above δ, negatives pushed below −δ. Scale α > 0 of the exponents:
        the larger, the more the hardest samples count.
    reduction : {"mean", "sum", "none"}
        ``"mean"`` and ``"sum"``: the loss, (). ``"none"``: its terms by proxy, (C,), whose sum is the loss.
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
    >>> from robustdml_ops.losses import ProxyAnchorLoss
    >>> loss_function = ProxyAnchorLoss(num_classes=1000, embedding_size=64)
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> loss_function(embeddings, torch.randint(1000, (32,))).backward()
    >>> embeddings.grad.shape, loss_function.proxies.grad.shape
    (torch.Size([32, 64]), torch.Size([1000, 64]))
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32,
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
        **unknown: Never,
    ) -> None:
        super().__init__(num_classes, embedding_size, margin, alpha, **shared(ClassMatrixOptions, locals()))

    def _plan(self, tensors: Sequence[Any]) -> Plan | None:
        embeddings, proxies, labels, _, _, weights, *_ = tensors
        if not self._is_plain(tensors):
            return None
        settings = (embeddings, proxies, labels, weights, self.alpha, self._bias(), self.backend)
        return anchor_plan(*settings) or anchor_gpu_plan(*settings)
