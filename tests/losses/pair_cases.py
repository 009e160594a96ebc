"""The losses on pairs beside their references: one list that every test of the family walks."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from python_ref import contrastive_loss, cosine_similarity, multi_similarity_loss
from python_ref.pairs import pair_sets, without_absent
from python_ref.reduction import mean_over_samples
from robustdml_ops.losses import ContrastiveLoss, MemoryContrastiveLoss, MultiSimilarityLoss
from robustdml_ops.ops import ABSENT

CPU_BACKENDS = ("native", "eager")
NAMES = ("ms", "ms-mined", "contrastive", "contrastive-cosine", "memory-paper", "memory-xbm", "memory-authors")


def random_matrix(rows, D, generator, classes):
    """Rows near the directions of a few classes, of different lengths: similarities spread over −1 … 1."""
    directions = torch.randn(max(1, classes), D, generator=generator, dtype=torch.float64)
    labels = torch.randint(max(1, classes), (rows,), generator=generator)
    noise = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    lengths = 0.3 + 3 * torch.rand(rows, 1, generator=generator, dtype=torch.float64)
    return (directions[labels] + noise) * lengths, labels


@dataclass
class PairCase:
    """A loss module, its inputs, and the reference on the same inputs."""

    name: str
    B: int
    D: int
    m: int | None = None  # rows of the bank, of which some are empty
    classes: int = 4
    dtype: torch.dtype = torch.float64
    reduction: str = "mean"
    weighted: bool = False
    backend: str | None = None
    seed: int = 0
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)
        X, self.labels = random_matrix(self.B, self.D, generator, self.classes)
        self.embeddings = X.to(self.dtype).requires_grad_()
        self.bank = self.bank_labels = None
        if self.m is not None:
            bank, self.bank_labels = random_matrix(self.m, self.D, generator, self.classes)
            self.bank_labels[::5] = ABSENT
            self.bank = bank.to(self.dtype).requires_grad_()
        self.weights = None
        if self.weighted:
            self.weights = 0.3 + torch.rand(self.B, generator=generator, dtype=torch.float64)
            self.weights[:: max(2, self.B // 3)] = 0
            self.weights = self.weights.to(self.dtype)
        settings = {"reduction": self.reduction, "backend": self.backend}
        if self.name.startswith("ms"):
            self.options = {"epsilon": 0.1 if self.name == "ms-mined" else None} | self.options
            self.module = MultiSimilarityLoss(**self.options, **settings)
        elif self.name.startswith("contrastive"):
            cosine = {"pos_margin": 0.8, "neg_margin": 0.3, "distance": "cosine"}
            self.options = (cosine if self.name.endswith("cosine") else {"pos_margin": 0.2}) | self.options
            self.module = ContrastiveLoss(**self.options, **settings)
        else:
            self.options = {"margin": 0.2, "variant": self.name.removeprefix("memory-")} | self.options
            self.module = MemoryContrastiveLoss(**self.options, **settings)

    def ours(self):
        return self.module(
            self.embeddings, self.labels, ref_emb=self.bank, ref_labels=self.bank_labels, sample_weights=self.weights
        )

    def reference(self, dtype=None):
        """The reference in ``dtype``, on the inputs as ours sees them."""

        def cast(tensor):
            return None if tensor is None else tensor.to(dtype or self.dtype)

        tensors = (cast(self.embeddings), self.labels, cast(self.bank), self.bank_labels)
        settings = {**self.options, "sample_weights": cast(self.weights), "reduction": self.reduction}
        if self.name.startswith("ms"):
            return multi_similarity_loss(*tensors, **settings)
        if self.name.startswith("contrastive"):
            return contrastive_loss(*tensors, **settings)
        return per_sample_memory_loss(*tensors, **settings)

    @property
    def inputs(self) -> list[Tensor]:
        return [tensor for tensor in (self.embeddings, self.bank) if tensor is not None]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients for an upstream vector that differs from sample to sample."""
        upstream = torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        return list(torch.autograd.grad(loss, self.inputs, upstream))


def per_sample_memory_loss(X, labels, bank, bank_labels, margin, variant, sample_weights, reduction):
    """``python_ref.memory_contrastive_loss`` by sample, with weights and absent rows; a test holds the two together."""
    labels = without_absent(labels, sample_weights)
    losses = torch.zeros(len(X), dtype=X.dtype)
    for others, other_labels in ((X, None), (bank, bank_labels)):
        if others is None:
            continue
        positive, negative = pair_sets(labels, other_labels)
        share = 1.0
        if variant == "authors" and others is bank and sample_weights is not None and len(X):
            share = max(1, int((sample_weights > 0).sum())) / len(X)
        S = cosine_similarity(X, others)
        if variant == "paper":
            losses = losses + ((S - margin).clamp(min=0) * negative).sum(1) - (S * positive).sum(1)
        else:
            attracted, repelled = positive & (S < 1 - 1e-5), negative & (margin < S)
            losses = losses + share * (((1 - S) * attracted).sum(1) + (S * repelled).sum(1))
    return mean_over_samples(losses, sample_weights, reduction)
