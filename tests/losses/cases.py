"""The losses of all families beside their references: one list that the tests of every loss walk."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

import python_ref
from python_ref.bspml import weighted_batch_loss
from python_ref.pairs import pair_sets, without_absent
from robustdml_ops import losses
from robustdml_ops.ops import ABSENT

CPU_BACKENDS = ("native", "eager")


@dataclass(frozen=True)
class Row:
    """A loss of the list: its module, and its reference."""

    case: "type[Case]"
    make: Callable[..., nn.Module]  # of classes and columns, if the loss has them, and of its settings
    reference: Callable[..., Tensor]  # of embeddings, class matrix or bank, labels, and of the same settings
    settings: dict[str, Any] = field(default_factory=dict)
    # Settings in one dimension, where all angles are 0 or π and centers coincide: the derivative has a pole there.
    flat: dict[str, Any] = field(default_factory=dict)
    # Tensors of the module that the reference takes as settings, by name.
    tensors: Callable[[nn.Module], dict[str, Tensor]] = lambda module: {}
    targets: Callable[["Case"], Any] = attrgetter("labels")  # what the module compares with
    dense_targets: Callable[["Case"], Tensor] = attrgetter("labels")  # and the reference
    takes_bank: bool = False
    has_bank: bool = False


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
    changed: dict[str, Any] = field(default_factory=dict)  # settings in the place of the row's
    row: Row = field(init=False)
    module: nn.Module = field(init=False)
    embeddings: Tensor = field(init=False)
    labels: Tensor = field(init=False)
    weights: Tensor | None = field(init=False, default=None)

    def __post_init__(self):
        self.row = ROWS[self.name]
        self.generator = torch.Generator().manual_seed(self.seed)
        self.build({"reduction": self.reduction, "backend": self.backend})
        self.module.to(self.dtype)

    @property
    def settings(self) -> dict[str, Any]:
        """Of the module and of the reference."""
        return self.row.settings | (self.row.flat if self.D == 1 else {}) | self.changed

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
        return tensor if hasattr(self.module, "proxies") else tensor.t()

    def build(self, options):
        self.module = self.row.make(self.C, self.D, **self.settings, **options)
        if hasattr(self.module, "margins"):
            self.module.margins.data += 0.2 * self.random(*self.module.margins.shape).abs()
        self.fill()
        self.draw_confidences()
        self.random_weights()

    def draw_confidences(self):
        pass

    def fill(self):
        """Fill the class matrix; half of the samples lie near a row, so that the softmax is peaky; lengths differ."""
        rows = self.random(*self.by_rows(self.parameter).shape)
        self.parameter.data = self.by_rows(rows)
        near = rows.to(self.dtype).double()[torch.randint(len(rows), (self.B,), generator=self.generator)]
        is_near = torch.rand(self.B, 1, generator=self.generator) < 0.5
        mixed = torch.where(is_near, near, self.random(self.B, self.D)) + 0.1 * self.random(self.B, self.D)
        self.embeddings = (mixed * 3).to(self.dtype).requires_grad_()
        self.labels = torch.randint(max(1, self.C // 2), (self.B,), generator=self.generator)

    def ours(self):
        return self.module(self.embeddings, self.row.targets(self), sample_weights=self.weights)

    def reference(self, dtype=None):
        X, P, weights = (self.cast(tensor, dtype) for tensor in (self.embeddings, self.parameter, self.weights))
        targets = self.row.dense_targets(self)
        targets = self.cast(targets, dtype) if targets.is_floating_point() else targets
        tensors = {name: self.cast(tensor, dtype) for name, tensor in self.row.tensors(self.module).items()}
        settings = self.settings | tensors | {"sample_weights": weights, "reduction": self.reduction}
        return self.row.reference(X, self.by_rows(P), targets, **settings)


class AnchorCase(MatrixCase):
    """A loss of the Proxy-Anchor family."""

    def draw_confidences(self):
        self.hidden, self.weight, self.bias = self.random(self.B, 5), self.random(self.C, 5), self.random(self.C) - 2

    @property
    def factors(self):
        return tuple(factor.to(self.dtype) for factor in (self.hidden, self.weight, self.bias))

    @property
    def confidences(self):
        hidden, weight, bias = self.factors
        return torch.sigmoid(hidden @ weight.t() + bias)

    def keep(self, kept):
        super().keep(kept)
        self.hidden = self.hidden[kept]


def random_matrix(rows, D, generator, classes):
    """Rows near the directions of a few classes, of different lengths: similarities spread over −1 … 1."""
    directions = torch.randn(max(1, classes), D, generator=generator, dtype=torch.float64)
    labels = torch.randint(max(1, classes), (rows,), generator=generator)
    noise = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    lengths = 0.3 + 3 * torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    return (directions[labels] + noise) * lengths, labels


@dataclass
class PairCase(Case):
    """A loss on pairs of samples of C classes, some rows with a bank of m samples, a fifth of them absent."""

    m: int = 20

    def build(self, options):
        X, self.labels = random_matrix(self.B, self.D, self.generator, self.C)
        self.embeddings = X.to(self.dtype).requires_grad_()
        self.bank = self.bank_labels = None
        if self.row.has_bank:
            bank, self.bank_labels = random_matrix(self.m, self.D, self.generator, self.C)
            self.bank_labels[::5] = ABSENT
            self.bank = bank.to(self.dtype).requires_grad_()
        self.random_weights()
        if self.weights is not None:
            self.weights.requires_grad_(False)
        self.module = self.row.make(**self.settings, **options)

    def ours(self):
        references = {} if self.bank is None else {"ref_emb": self.bank, "ref_labels": self.bank_labels}
        return self.module(self.embeddings, self.labels, **references, sample_weights=self.weights)

    def reference(self, dtype=None):
        X, bank, weights = (self.cast(tensor, dtype) for tensor in (self.embeddings, self.bank, self.weights))
        settings = {**self.settings, "sample_weights": weights, "reduction": self.reduction}
        return self.row.reference(X, self.labels, bank, self.bank_labels, **settings)

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


def proxy_nca_loss(X, P, y, include_positive, sample_weights, reduction):
    each = python_ref.proxy_nca_losses(X, P, y, 8.0, include_positive)
    return python_ref.mean_over_samples(each, sample_weights, reduction)


def regularized_soft_triple_loss(X, y, centers, regularizer_weight, sample_weights, reduction):
    loss = python_ref.soft_triple_loss(X, y, centers, sample_weights=sample_weights, reduction=reduction)
    if reduction == "none" or regularizer_weight == 0:
        return loss
    return loss + regularizer_weight * python_ref.soft_triple_regularizer(centers)


def of_class_matrix(reference, centers_per_class=None):
    """A reference that takes labels before the class matrix, (C, D), or (C, H, D) with several centers a class."""

    def of_rows(X, W, y, **settings):
        return reference(
            X, y, W if centers_per_class is None else W.reshape(-1, centers_per_class, X.shape[1]), **settings
        )

    return of_rows


def adaface(C, D, **settings):
    """Lengths of its running mean that stay."""
    module = losses.AdaFaceLoss(C, D, **settings)
    module.mean_length.fill_(2)
    module.length_deviation.fill_(0.5)
    return module.eval()


def learnt_arcface(C, D, margin, **settings):
    """A margin for each class, from 0 to this one in degrees; the module has them in radians."""
    margins = torch.linspace(0, margin, C, dtype=torch.float64)
    return losses.ArcFaceLoss(C, D, nn.Parameter(margins), **settings)


def arcface_loss_of_radians(X, y, centers, margin, **settings):
    return python_ref.arcface_loss(X, y, centers, margin * (180 / torch.pi), **settings)


dropped, confidences = {"drop_similar_negatives": 0.31}, attrgetter("confidences")
adaptive = partial(
    Row, AnchorCase, reference=python_ref.adaptive_proxy_anchor_loss, tensors=lambda module: {"margins": module.margins}
)
adaptive_per_class = partial(adaptive, partial(losses.AdaptiveProxyAnchorLoss, per_class=True))
smooth = partial(
    Row,
    AnchorCase,
    losses.SmoothProxyAnchorLoss,
    python_ref.smooth_proxy_anchor_loss,
    targets=confidences,
    dense_targets=confidences,
)
ANCHORS = {
    "proxy-anchor": Row(AnchorCase, losses.ProxyAnchorLoss, python_ref.proxy_anchor_loss),
    "smooth": smooth(),
    "smooth-factored": smooth(targets=attrgetter("factors")),
    "adaptive": adaptive(losses.AdaptiveProxyAnchorLoss),
    "adaptive-per-class": adaptive_per_class(),
    "adaptive-per-class-proxy": adaptive_per_class(settings={"negative_margin": "proxy", **dropped}),
    "proxy-anchor-dropped": Row(AnchorCase, losses.ProxyAnchorLoss, python_ref.proxy_anchor_loss, dropped),
    "smooth-factored-dropped": smooth(targets=attrgetter("factors"), settings=dropped),
}
cosface, arcface = of_class_matrix(python_ref.cosface_loss), of_class_matrix(python_ref.arcface_loss, 1)
soft_triple = partial(Row, MatrixCase, settings={"regularizer_weight": 0.3}, flat={"regularizer_weight": 0.0})
by_angle = partial(Row, MatrixCase, flat={"margin": 0.0})
CLASSES = {
    "proxy-nca": Row(
        MatrixCase, partial(losses.ProxyNCALoss, softmax_scale=8.0), proxy_nca_loss, {"include_positive": True}
    ),
    "proxy-nca-2017": Row(
        MatrixCase, partial(losses.ProxyNCALoss, softmax_scale=8.0), proxy_nca_loss, {"include_positive": False}
    ),
    "normalized-softmax": Row(
        MatrixCase, losses.NormalizedSoftmaxLoss, of_class_matrix(python_ref.normalized_softmax_loss)
    ),
    "soft-triple": soft_triple(
        partial(losses.SoftTripleLoss, centers_per_class=3), of_class_matrix(regularized_soft_triple_loss, 3)
    ),
    "soft-triple-one-center": soft_triple(
        partial(losses.SoftTripleLoss, centers_per_class=1), of_class_matrix(regularized_soft_triple_loss, 1)
    ),
    "cosface": Row(MatrixCase, losses.CosFaceLoss, cosface, {"margin": 0.35, "scale": 16.0}),
    "arcface": by_angle(losses.ArcFaceLoss, arcface, {"margin": 28.6, "scale": 16.0}),
    # Many samples lie beyond π − m.
    "arcface-wide": by_angle(losses.ArcFaceLoss, arcface, {"margin": 100.0, "scale": 16.0}),
    "arcface-margins": by_angle(
        learnt_arcface,
        of_class_matrix(arcface_loss_of_radians, 1),
        {"margin": 60.0, "scale": 16.0},
        tensors=lambda module: {"margin": module.margin},
    ),
    "adaface": by_angle(
        adaface,
        of_class_matrix(python_ref.adaface_loss),
        {"margin": 0.4, "scale": 16.0},
        tensors=lambda module: {"mean_length": module.mean_length, "length_deviation": module.length_deviation},
    ),
    "subcenter-arcface": by_angle(
        partial(losses.SubCenterArcFaceLoss, sub_centers=3),
        of_class_matrix(python_ref.arcface_loss, 3),
        {"margin": 28.6, "scale": 16.0},
    ),
}
of_pairs = partial(Row, PairCase, takes_bank=True)
memory = partial(of_pairs, losses.MemoryContrastiveLoss, per_sample_memory_loss)
# With an epsilon of 0.0517 no pair is within float32's rounding of the edge.
PAIRS = {
    "ms": of_pairs(losses.MultiSimilarityLoss, python_ref.multi_similarity_loss, {"epsilon": None}),
    "ms-mined": of_pairs(losses.MultiSimilarityLoss, python_ref.multi_similarity_loss, {"epsilon": 0.0517}),
    "contrastive": of_pairs(losses.ContrastiveLoss, python_ref.contrastive_loss, {"pos_margin": 0.2}),
    "contrastive-cosine": of_pairs(
        losses.ContrastiveLoss,
        python_ref.contrastive_loss,
        {"pos_margin": 0.8, "neg_margin": 0.3, "distance": "cosine"},
    ),
    **{f"memory-{variant}": memory({"margin": 0.2, "variant": variant}) for variant in ("paper", "xbm", "authors")},
    "supcon": of_pairs(losses.SupConLoss, python_ref.supcon_loss, {"form": "outside"}),
    "supcon-inside": of_pairs(losses.SupConLoss, python_ref.supcon_loss, {"form": "inside"}),
    "nt-xent": of_pairs(losses.NTXentLoss, python_ref.nt_xent_loss, {"temperature": 0.2}),
    "bspml": Row(PairCase, losses.BSPMLLoss, bspml_loss, {"epsilon": 0.0517}),
}
BANKS = {f"{name}, a bank": replace(row, has_bank=True) for name, row in PAIRS.items() if row.takes_bank}
ROWS = ANCHORS | CLASSES | PAIRS | BANKS
ANCHOR_NAMES, CLASS_NAMES, PAIR_NAMES, BANK_NAMES = (tuple(rows) for rows in (ANCHORS, CLASSES, PAIRS, BANKS))
ANY_PAIRS = tuple(name for name, row in PAIRS.items() if row.takes_bank)
MATRIX_NAMES, NAMES = ANCHOR_NAMES + CLASS_NAMES, tuple(ROWS)


def make_case(name: str, B: int, C: int, D: int, **options) -> Case:
    """The case of a name of ``NAMES``."""
    return ROWS[name].case(name, B, C, D, **options)


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
