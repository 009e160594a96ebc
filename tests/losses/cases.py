"""The losses of all families beside their references: one list that the tests of every loss walk."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import python_ref
from python_ref.bspml import weighted_batch_loss
from python_ref.pairs import pair_sets, without_absent
from robustdml_ops import losses
from robustdml_ops.ops import ABSENT

CPU_BACKENDS = ("native", "eager")
ANCHOR_NAMES = (
    "proxy-anchor",
    "smooth",
    "smooth-factored",
    "adaptive",
    "adaptive-per-class",
    "adaptive-per-class-proxy",
    "proxy-anchor-dropped",
    "smooth-factored-dropped",
)
CLASS_NAMES = (
    "proxy-nca",
    "proxy-nca-2017",
    "normalized-softmax",
    "soft-triple",
    "soft-triple-one-center",
    "cosface",
    "arcface",
    "arcface-wide",
    "arcface-margins",
    "adaface",
    "subcenter-arcface",
)


@dataclass
class Case:
    """A loss module, its inputs, and the reference on the same inputs."""

    name: str
    B: int
    C: int
    D: int
    dtype: torch.dtype = torch.float64
    reduction: str = "mean"
    weighted: bool = False
    backend: str | None = None
    seed: int = 0
    module: nn.Module = field(init=False)
    embeddings: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    weights: Tensor | None = field(init=False, default=None)

    def __post_init__(self):
        self.generator = torch.Generator().manual_seed(self.seed)
        self.build({"reduction": self.reduction, "backend": self.backend})
        self.module.to(self.dtype)

    def random(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def random_weights(self):
        if self.weighted:
            weights = 0.3 + torch.rand(self.B, generator=self.generator, dtype=torch.float64)
            weights[:: max(2, self.B // 3)] = 0
            self.weights = weights.to(self.dtype).requires_grad_()

    def cast(self, tensor, dtype):
        return None if tensor is None else tensor.to(dtype or self.dtype)

    def ours(self):
        return self.module(self.embeddings, self.labels, sample_weights=self.weights)

    @property
    def inputs(self) -> list[Tensor]:
        """All that has a gradient."""
        weights = [] if self.weights is None or not self.weights.requires_grad else [self.weights]
        return [self.embeddings, *self.module.parameters(), *weights]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients for an upstream vector whose entries differ."""
        upstream = torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        return list(torch.autograd.grad(loss, self.inputs, upstream))

    def keep(self, kept: Tensor) -> None:
        """Restrict the batch to these samples."""
        self.embeddings, self.labels = self.embeddings.detach()[kept].requires_grad_(), self.labels[kept]


class MatrixCase(Case):
    """A loss with a class matrix, ``parameter``, whose rows are in ``by_rows``."""

    @property
    def parameter(self):
        return next(iter(self.module.parameters()))

    def by_rows(self, tensor):
        return tensor if self.name in ANCHOR_NAMES or self.name.startswith("proxy") else tensor.t()

    def fill(self):
        """Fill the class matrix; half of the samples lie near a row, so that the softmax is peaky; lengths differ."""
        rows = self.random(*self.by_rows(self.parameter).shape)
        self.parameter.data = self.by_rows(rows)
        near = rows.to(self.dtype).double()[torch.randint(len(rows), (self.B,), generator=self.generator)]
        is_near = torch.rand(self.B, 1, generator=self.generator) < 0.5
        mixed = torch.where(is_near, near, self.random(self.B, self.D)) + 0.1 * self.random(self.B, self.D)
        self.embeddings = (mixed * 3).to(self.dtype).requires_grad_()
        self.labels = torch.randint(max(1, self.C // 2), (self.B,), generator=self.generator)


@dataclass
class AnchorCase(MatrixCase):
    """A loss of the Proxy-Anchor family."""

    alpha: float = 32.0

    def build(self, options):
        self.drop = 0.31 if self.name.endswith(("dropped", "class-proxy")) else None
        options |= {"alpha": self.alpha, "drop_similar_negatives": self.drop}
        if self.name.startswith("adaptive"):
            self.side = "proxy" if self.name.endswith("proxy") else "sample"
            options |= {"per_class": "per-class" in self.name, "negative_margin": self.side}
            self.module = losses.AdaptiveProxyAnchorLoss(self.C, self.D, **options)
            self.module.margins.data += 0.2 * self.random(*self.module.margins.shape).abs()
        else:
            kind = losses.SmoothProxyAnchorLoss if self.name.startswith("smooth") else losses.ProxyAnchorLoss
            self.module = kind(self.C, self.D, **options)
        self.fill()
        self.hidden, self.weight, self.bias = self.random(self.B, 5), self.random(self.C, 5), self.random(self.C) - 2
        self.random_weights()

    @property
    def factors(self):
        return tuple(factor.to(self.dtype) for factor in (self.hidden, self.weight, self.bias))

    @property
    def confidences(self):
        hidden, weight, bias = self.factors
        return torch.sigmoid(hidden @ weight.t() + bias)

    def ours(self):
        kind = self.name.removesuffix("-dropped")
        targets = {"smooth": self.confidences, "smooth-factored": self.factors}.get(kind, self.labels)
        return self.module(self.embeddings, targets, sample_weights=self.weights)

    def reference(self, dtype=None):
        X, P, weights = (self.cast(tensor, dtype) for tensor in (self.embeddings, self.module.proxies, self.weights))
        options = {"alpha": self.alpha, "sample_weights": weights, "reduction": self.reduction}
        options |= {"drop_similar_negatives": self.drop}
        if self.name.startswith("smooth"):
            return python_ref.smooth_proxy_anchor_loss(X, P, self.cast(self.confidences, dtype), **options)
        if self.name.startswith("adaptive"):
            margins = self.cast(self.module.margins, dtype)
            return python_ref.adaptive_proxy_anchor_loss(
                X, P, self.labels, margins, negative_margin=self.side, **options
            )
        return python_ref.proxy_anchor_loss(X, P, self.labels, **options)

    def keep(self, kept):
        super().keep(kept)
        self.hidden = self.hidden[kept]


class ClassCase(MatrixCase):
    """A softmax over classes."""

    def build(self, options):
        if self.name.startswith("proxy-nca"):
            include = self.name == "proxy-nca"
            self.module = losses.ProxyNCALoss(self.C, self.D, 8.0, include_positive=include, **options)
        elif self.name == "normalized-softmax":
            self.module = losses.NormalizedSoftmaxLoss(self.C, self.D, **options)
        elif self.name == "cosface":
            self.module = losses.CosFaceLoss(self.C, self.D, 0.35, 16.0, **options)
        elif self.name == "adaface":
            self.module = losses.AdaFaceLoss(self.C, self.D, 0.0 if self.D == 1 else 0.4, 16.0, **options)
            self.module.mean_length.fill_(2)
            self.module.length_deviation.fill_(0.5)
            self.module.eval()  # the running mean stays
        elif "arcface" in self.name:
            # In one dimension all angles are 0 or π, where the derivative of a margin has a pole. The wide one has many
            # samples beyond π − m.
            self.margin = 0.0 if self.D == 1 else 100.0 if self.name.endswith("wide") else 28.6
            if self.name.endswith("margins"):  # learnt, one for each class
                margins = torch.linspace(0, 0.0 if self.D == 1 else 60.0, self.C, dtype=torch.float64)
                self.margin = nn.Parameter(margins)
            kind = losses.SubCenterArcFaceLoss if self.name.startswith("subcenter") else losses.ArcFaceLoss
            self.module = kind(self.C, self.D, self.margin, 16.0, **options)
        else:
            H = 1 if self.name.endswith("one-center") else 3
            # In one dimension centers coincide, and the reference's root has no derivative there.
            self.regularizer_weight = 0.3 if self.D > 1 else 0.0
            options |= {"regularizer_weight": self.regularizer_weight}
            self.module = losses.SoftTripleLoss(self.C, self.D, H, **options)
        self.fill()
        self.random_weights()

    def reference(self, dtype=None):
        X, W, weights = (self.cast(tensor, dtype) for tensor in (self.embeddings, self.parameter, self.weights))
        y, options = self.labels, {"sample_weights": weights, "reduction": self.reduction}
        if self.name.startswith("proxy-nca"):
            return python_ref.mean_over_samples(
                python_ref.proxy_nca_losses(X, W, y, 8.0, self.name == "proxy-nca"), **options
            )
        if self.name == "normalized-softmax":
            return python_ref.normalized_softmax_loss(X, y, W.t(), **options)
        if self.name == "cosface":
            return python_ref.cosface_loss(X, y, W.t(), 0.35, 16.0, **options)
        if self.name == "adaface":
            module = self.module
            lengths = (module.mean_length.to(X.dtype), module.length_deviation.to(X.dtype))
            return python_ref.adaface_loss(X, y, W.t(), *lengths, module.margin, 16.0, **options)
        centers = W.t().reshape(self.C, -1, self.D)
        if self.name == "arcface-margins":
            margins = self.cast(self.module.margin, dtype) * (180 / torch.pi)
            return python_ref.arcface_loss(X, y, centers, margins, 16.0, **options)
        if "arcface" in self.name:
            return python_ref.arcface_loss(X, y, centers, self.margin, 16.0, **options)
        loss = python_ref.soft_triple_loss(X, y, centers, **options)
        if self.reduction == "none" or self.regularizer_weight == 0:
            return loss
        return loss + self.regularizer_weight * python_ref.soft_triple_regularizer(centers)


def random_matrix(rows, D, generator, classes):
    """Rows near the directions of a few classes, of different lengths: similarities spread over −1 … 1."""
    directions = torch.randn(max(1, classes), D, generator=generator, dtype=torch.float64)
    labels = torch.randint(max(1, classes), (rows,), generator=generator)
    noise = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    lengths = 0.3 + 3 * torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    return (directions[labels] + noise) * lengths, labels


@dataclass
class PairCase(Case):
    """A loss on pairs of samples of C classes, with a bank of m rows, some of them empty, if the name says so."""

    m: int = 20

    def build(self, options):
        X, self.labels = random_matrix(self.B, self.D, self.generator, self.C)
        self.embeddings = X.to(self.dtype).requires_grad_()
        self.bank = self.bank_labels = None
        self.kind, _, with_bank = self.name.partition(", ")
        if with_bank:
            bank, self.bank_labels = random_matrix(self.m, self.D, self.generator, self.C)
            self.bank_labels[::5] = ABSENT
            self.bank = bank.to(self.dtype).requires_grad_()
        self.random_weights()
        if self.weights is not None:
            self.weights.requires_grad_(False)
        kind, self.reference_loss, self.options = PAIRS[self.kind]
        self.module = kind(**self.options, **options)

    def ours(self):
        references = {} if self.bank is None else {"ref_emb": self.bank, "ref_labels": self.bank_labels}
        return self.module(self.embeddings, self.labels, **references, sample_weights=self.weights)

    def reference(self, dtype=None):
        X, bank, weights = (self.cast(tensor, dtype) for tensor in (self.embeddings, self.bank, self.weights))
        settings = {**self.options, "sample_weights": weights, "reduction": self.reduction}
        return self.reference_loss(X, self.labels, bank, self.bank_labels, **settings)

    @property
    def inputs(self):
        return [*super().inputs[:1], *([] if self.bank is None else [self.bank]), *super().inputs[1:]]


def bspml_loss(X, labels, bank, bank_labels, sample_weights, reduction, **options):
    """``python_ref.bspml.weighted_batch_loss``, whose mean is over all samples."""
    weights = X.new_ones(len(X)) if sample_weights is None else sample_weights
    each = weighted_batch_loss(X, labels, weights, **options)
    return each if reduction == "none" else each.sum() / max(1, len(X))


def per_sample_memory_loss(X, labels, bank, bank_labels, margin, variant, sample_weights, reduction):
    """``python_ref.memory_contrastive_loss`` by sample, with weights and absent rows; a test holds the two together."""
    labels = without_absent(labels, sample_weights)
    each = torch.zeros(len(X), dtype=X.dtype)
    for others, other_labels in ((X, None), (bank, bank_labels)):
        if others is None:
            continue
        positive, negative = pair_sets(labels, other_labels)
        factor = 1.0
        if variant == "authors" and others is bank and sample_weights is not None and len(X):
            factor = max(1, int((sample_weights > 0).sum())) / len(X)
        S = python_ref.cosine_similarity(X, others)
        if variant == "paper":
            each = each + ((S - margin).clamp(min=0) * negative).sum(1) - (S * positive).sum(1)
        else:
            attracted, repelled = positive & (S < 1 - 1e-5), negative & (margin < S)
            each = each + factor * (((1 - S) * attracted).sum(1) + (S * repelled).sum(1))
    return python_ref.mean_over_samples(each, sample_weights, reduction)


# A loss, its reference, and the settings of both. With this epsilon no pair is within float32's rounding of the edge.
PAIRS = {
    "ms": (losses.MultiSimilarityLoss, python_ref.multi_similarity_loss, {"epsilon": None}),
    "ms-mined": (losses.MultiSimilarityLoss, python_ref.multi_similarity_loss, {"epsilon": 0.0517}),
    "contrastive": (losses.ContrastiveLoss, python_ref.contrastive_loss, {"pos_margin": 0.2}),
    "contrastive-cosine": (
        losses.ContrastiveLoss,
        python_ref.contrastive_loss,
        {"pos_margin": 0.8, "neg_margin": 0.3, "distance": "cosine"},
    ),
    **{
        f"memory-{variant}": (losses.MemoryContrastiveLoss, per_sample_memory_loss, {"margin": 0.2, "variant": variant})
        for variant in ("paper", "xbm", "authors")
    },
    "supcon": (losses.SupConLoss, python_ref.supcon_loss, {"form": "outside"}),
    "supcon-inside": (losses.SupConLoss, python_ref.supcon_loss, {"form": "inside"}),
    "nt-xent": (losses.NTXentLoss, python_ref.nt_xent_loss, {"temperature": 0.2}),
    "bspml": (losses.BSPMLLoss, bspml_loss, {"epsilon": 0.0517}),
}
PAIR_NAMES = tuple(PAIRS)
ANY_PAIRS = PAIR_NAMES[:-1]  # those that take a bank
BANK_NAMES = tuple(f"{name}, a bank" for name in ANY_PAIRS)
MATRIX_NAMES = ANCHOR_NAMES + CLASS_NAMES
NAMES = MATRIX_NAMES + PAIR_NAMES + BANK_NAMES


def make_case(name: str, B: int, C: int, D: int, **options) -> Case:
    """The case of a name of ``NAMES``."""
    kind = AnchorCase if name in ANCHOR_NAMES else ClassCase if name in CLASS_NAMES else PairCase
    return kind(name, B, C, D, **options)


def assert_close(ours, reference, tolerance=1e-12):
    assert torch.isfinite(ours).all()
    scale = 1 + (reference.abs().max() if reference.numel() else 0)
    torch.testing.assert_close(ours / scale, reference / scale, rtol=0, atol=tolerance)


def assert_same(case, tolerance=1e-12):
    """The case's loss and all its gradients are the reference's."""
    ours, reference = case.ours(), case.reference()
    assert ours.shape == reference.shape
    assert_close(ours, reference, tolerance)
    for mine, theirs in zip(case.gradients(ours), case.gradients(reference), strict=True):
        assert_close(mine, theirs, tolerance)
