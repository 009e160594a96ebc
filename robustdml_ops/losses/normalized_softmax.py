"""Normalised softmax, Zhai and Wu 2019."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Never

from robustdml_ops.engine.validation import check_positive
from robustdml_ops.losses.families.classes import ClassFamilyLoss
from robustdml_ops.losses.options import Backend, Reduction, SoftmaxOptions, shared
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
        Number of classes C, and length of an embedding D. ``.W`` is a parameter (D, C): one column for each class.
    temperature : float
        Temperature T > 0, by which the cosines are divided.
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
    >>> from robustdml_ops.losses import NormalizedSoftmaxLoss
    >>> loss_function = NormalizedSoftmaxLoss(num_classes=1000, embedding_size=64)
    >>> loss_function(torch.randn(32, 64), torch.randint(1000, (32,))).backward()
    """

    served_forms = ("cosine", "squared")
    recordable = ("embedding_size", "num_classes", "temperature")
    matrix_name = "W"
    columns = True
    W: nn.Parameter

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
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
        super().__init__(num_classes, embedding_size, **shared(SoftmaxOptions, locals()))
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
