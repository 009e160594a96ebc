"""ProcSim, Barbany et al. 2024: a sample counts as much as its proxy loss makes its label credible."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from robustdml_ops.engine.labels import ABSENT, class_labels
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.validation import (
    check_choice,
    check_finite_numbers,
    check_matrix,
    check_positive,
    check_sizes,
)
from robustdml_ops.losses.families.metric_loss import ShardableLoss
from robustdml_ops.losses.families.pairs import PairInputs
from robustdml_ops.losses.multi_similarity import MultiSimilarityLoss
from robustdml_ops.losses.options import Backend
from robustdml_ops.losses.proxy_nca import ProxyNCALoss
from robustdml_ops.losses.superloss import THRESHOLDS
from robustdml_ops.ops import confidence, otsu_confidence

NAMES = ("multi-similarity", "proxy-nca")


class ProcSimStep(NamedTuple):
    """Loss of a batch, and the constants that ProcSim found for it."""

    loss: Tensor  # ()
    confidence: Tensor  # (B,) σ
    losses: Tensor  # (B,) of the detector
    threshold: Tensor  # () τ; ∞ where there is no cut


class ProcSimLoss(ShardableLoss, nn.Module):
    """ProcSim: each sample's metric-learning loss times its confidence, found from a proxy loss of its own.

        σ_i = exp(−W([(ℓ_i^proxy − τ)/2λ]₊)),   τ = Otsu's threshold of the batch's ℓ^proxy
        L   = 1/B Σ_i (σ_i ℓ_i^DML + ω ℓ_i^SSL)  +  1/B Σ_i ℓ_i^proxy(x_i constant)

    No gradient passes through σ or τ. Defaults are the paper's ProcSim; every row of its Table 1 is a
    setting of ``dml``, ``threshold``, ``detector`` and ``regularizer``.

    The last sum trains proxies that only detect, on which the paper is silent; where Proxy-NCA is the DML loss it is
    absent. With fewer than 4 samples, or equal losses, Otsu's τ is ∞ and every σ is 1.

    Source: Barbany, Lin, Bastan, Dhua, "ProcSim: Proxy-based Confidence for Robust Similarity Learning", WACV 2024,
    Algorithm 1, Eqs. 3–5.

    Parameters
    ----------
    num_classes, embedding_size : int
        Number of classes C, and length of an embedding D.
    lam, omega : float
        λ > 0, in units of the detector's losses: small drops what lies above τ, large trusts all. Weight ω ≥ 0 of the
        regulariser.
    dml : {"multi-similarity", "proxy-nca"} or callable
        ℓ^DML. A callable takes (embeddings, labels) and gives one loss per sample, (B,), as losses of this package do
        with ``reduction="none"``.
    threshold : {"otsu", "mean", "gmm"}
        ``"mean"``: the mean of all training batches so far, as SuperLoss takes it. ``"gmm"``: where the components of a
        Gaussian mixture are equally likely; it needs scikit-learn and, on a GPU, makes the step wait for the host.
    detector : {"proxy-nca", "multi-similarity"}
        Whose losses tell wrong labels.
    regularizer, confidence_on_regularizer : callable, bool, optional
        ℓ^SSL: takes (embeddings, guidance, labels), gives (B,), such as ``LanguageGuidanceLoss(reduction="none")``.
        Needed where ω > 0. Whether σ weighs it, too.
    drop_above : bool
        Whether samples above τ leave the pairs of the others, too, an extension for losses on pairs: σ alone weighs a
        sample as an anchor. A callable gets ``ops.ABSENT`` for the labels of such samples.
    softmax_scale : float
        t > 0 of Proxy-NCA, an inverse temperature.
    backend : {"native", "triton", "eager", "auto"}, optional
        Who computes. None and auto: the fastest that serves the device.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProcSimLoss
    >>> loss_function = ProcSimLoss(num_classes=10, embedding_size=16, lam=0.1)
    >>> embeddings, labels = torch.randn(32, 16, requires_grad=True), torch.randint(10, (32,))
    >>> loss_function(embeddings, labels).backward()
    >>> loss_function.step(embeddings, labels).confidence.shape
    torch.Size([32])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        lam: float = 1.0,
        omega: float = 0.0,
        dml: Literal["multi-similarity", "proxy-nca"] | Callable[[Tensor, Tensor], Tensor] = "multi-similarity",
        threshold: Literal["otsu", "mean", "gmm"] = "otsu",
        detector: Literal["proxy-nca", "multi-similarity"] = "proxy-nca",
        regularizer: Callable[[Tensor, Tensor | None, Tensor], Tensor] | None = None,
        confidence_on_regularizer: bool = False,
        *,
        drop_above: bool = False,
        softmax_scale: float = 1.0,
        backend: Backend | None = None,
    ) -> None:
        super().__init__()
        check_positive(lam=lam)
        check_finite_numbers(omega=omega)
        if omega < 0:
            raise ValueError(f"omega must be finite and not negative, got {omega}")
        if omega > 0 and regularizer is None:
            raise ValueError(f"omega={omega} weighs a regularizer: give one, such as LanguageGuidanceLoss")
        if not callable(dml):
            check_choice(NAMES, dml=dml)
        check_choice(("otsu", *THRESHOLDS), threshold=threshold)
        check_choice(NAMES, detector=detector)
        if drop_above and dml == "proxy-nca":
            raise ValueError('drop_above=True leaves samples out of pairs, and dml="proxy-nca" has none: leave one out')
        self.lam, self.omega = lam, omega
        self.dml, self.detector = dml, detector
        self.regularizer, self.confidence_on_regularizer = regularizer, confidence_on_regularizer
        self.drop_above = drop_above
        self.threshold = None if threshold == "otsu" else THRESHOLDS[threshold]()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        self.proxy_nca = self.multi_similarity = self.detecting = None
        if "proxy-nca" in (dml, detector):
            self.proxy_nca = ProxyNCALoss(num_classes, embedding_size, softmax_scale, reduction="none", backend=backend)
        if dml == "multi-similarity":
            self.multi_similarity = MultiSimilarityLoss(backend=backend)
        if detector == "multi-similarity":
            self.detecting = MultiSimilarityLoss(reduction="none", backend=backend)

    @property
    def proxies(self) -> nn.Parameter | None:
        """A parameter (C, D); None where neither detector nor DML loss is Proxy-NCA."""
        return None if self.proxy_nca is None else self.proxy_nca.proxies

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: None = None,
        ref_labels: None = None,
        *,
        guidance: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch, (). An empty batch gives 0, connected to the graph.

        Parameters
        ----------
        embeddings, labels : Tensor
            (B, D), floating point, any scale; (B,) integers in 0 … C − 1.
        indices_tuple, ref_emb, ref_labels : None
            Of the interface of pytorch-metric-learning's losses.
        guidance : Tensor, optional
            What the regulariser knows of the samples: text embeddings (B, k, d) for ``LanguageGuidanceLoss``.

        Raises
        ------
        ValueError, TypeError, IndexError
            Shapes, types or devices that do not fit; a callable that does not give one loss per sample; guidance
            without a regulariser; on the CPU NaN, inf or a label out of range.
        """
        for name, value in (("indices_tuple", indices_tuple), ("ref_emb", ref_emb), ("ref_labels", ref_labels)):
            if value is not None:
                raise ValueError(f"ProcSimLoss takes all pairs of the batch: leave {name} out")
        return self.step(embeddings, labels, guidance).loss

    def step(self, embeddings: Tensor, labels: Tensor, guidance: Tensor | None = None) -> ProcSimStep:
        """Loss of a batch as :meth:`forward`, with the confidences, the detector's losses and the threshold."""
        shards = self.shards

        def check() -> OwnRows:
            check_matrix("embeddings", embeddings)
            if guidance is not None and self.regularizer is None:
                raise ValueError("guidance is for a regularizer, and there is none: give ProcSimLoss(regularizer=…)")
            return {}

        shards.agree(check, {"guidance": guidance is not None})
        proxy_losses: Any = None
        # The losses within raise on all processes what is wrong on one.
        if self.proxy_nca is not None:
            proxy_losses = self.proxy_nca(embeddings if self.dml == "proxy-nca" else embeddings.detach(), labels)
        detected = proxy_losses if self.detecting is None else self.detecting(embeddings.detach(), labels)
        labels, losses = class_labels(labels, embeddings), detected.detach()
        joint = shards.gather(losses)
        if self.threshold is None:  # one call for both: the fixed costs of small calls are most of what ProcSim adds
            threshold, sigma = otsu_confidence(joint, self.lam)
        else:
            threshold = self.threshold(joint)
            sigma = confidence(joint, threshold, self.lam)
        confidences, B = shards.take_own(sigma), max(1, len(sigma))
        paired = shards.gather(labels)
        if self.drop_above:
            paired = torch.where(joint > threshold, ABSENT, paired)
        if self.multi_similarity is not None:
            # As sample_weights, σ = 0 would take a sample from the pairs of the others, too, and from B.
            pairs = PairInputs((shards.gather(embeddings), paired, None, None), None, sigma / B, present=1)
            loss = self.multi_similarity._weighted_sum(self.multi_similarity._own_anchors(pairs))
        else:
            dml = proxy_losses
            if callable(self.dml):
                dml = _check_per_sample("dml", self.dml(embeddings, paired[shards.own_slice()]), labels)
            loss = shards.sum_terms((confidences * dml).sum()) / B
        if proxy_losses is not None and self.dml != "proxy-nca":
            loss = loss + shards.sum_terms(proxy_losses.sum()) / B
        if self.regularizer is not None and self.omega > 0:
            guided = _check_per_sample("regularizer", self.regularizer(embeddings, guidance, labels), labels)
            weighted = confidences * guided if self.confidence_on_regularizer else guided
            loss = loss + self.omega * (shards.sum_terms(weighted.sum()) / B)
        return ProcSimStep(shards.begin_backward(loss), confidences, losses, threshold)

    def class_dimensions(self) -> dict[str, int]:
        """Empty: the losses within have the class matrices; raises for callables that see one process alone."""
        for name, value in (("regularizer", self.regularizer), ("dml", self.dml)):
            if callable(value) and not hasattr(value, "class_dimensions"):
                raise ValueError(
                    f"{name} of ProcSimLoss, {value!r}, sees one process's samples alone: leave it out, or give a loss "
                    "of this package, which compares with those of all"
                )
        return {}

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        dml = self.dml if isinstance(self.dml, str) else type(self.dml).__name__
        return f"lam={self.lam}, omega={self.omega}, dml={dml}, detector={self.detector}"


def _check_per_sample(argument: str, losses: Tensor, labels: Tensor) -> Tensor:
    if losses.shape != labels.shape:
        raise ValueError(
            f"{argument} must give one loss per sample, ({len(labels)},), got {tuple(losses.shape)}: losses of this "
            "package do with reduction='none'"
        )
    return losses
