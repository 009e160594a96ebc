"""What PRISM is made of by its settings: a similarity and a threshold."""

import math

import torch

from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.prism.authors import AuthorsSimilarity, AuthorsSmoothTopR
from robustdml_ops.robust.prism.cautious import CautiousThreshold
from robustdml_ops.robust.prism.scores import BatchPositive, MemoryPositive, ProxySimilarity, Similarity
from robustdml_ops.robust.prism.settings import ABLATIONS, BY_OTSU, PRISMSettings
from robustdml_ops.robust.prism.softmax import BankSoftmax, VmfSimilarity
from robustdml_ops.robust.prism.thresholds import (
    FixedThreshold,
    PerClassThreshold,
    SmoothTopR,
    Threshold,
    TopR,
    otsu_cut,
)


def make_similarity(settings: PRISMSettings, backend: str | None) -> Similarity:
    """T; those with a memory own the bank."""
    C, D = settings.num_classes, settings.embedding_size
    if settings.similarity == "proxy":
        return ProxySimilarity(C, backend)
    if settings.memory_size is None:
        return BatchPositive(C)
    # C++ and CUDA have no way of their own to store rows: who asks for them is served without Triton.
    stores = "eager" if backend == "native" else backend
    bank = MemoryBank(C, D, settings.memory_size, settings.memory_dtype, settings.num_samples, backend=stores)
    if settings.preset == "authors":
        return AuthorsSimilarity(bank, backend)
    copies = settings.copies_to_find()
    if settings.similarity == "memory-positive":
        return MemoryPositive(bank, copies)
    if settings.vmf_start is None:
        return BankSoftmax(bank, copies, settings.resolved("unseen"), backend)
    estimator, bias_correction = settings.resolved("estimator"), settings.resolved("bias_correction")
    vmf = VmfSimilarity(bank, copies, settings.vmf_start, estimator, bias_correction, backend)
    vmf.tries_other_labels = settings.threshold == "cautious"
    return vmf


def make_threshold(settings: PRISMSettings) -> Threshold:
    """How a batch's scores become a verdict."""
    if settings.preset == "authors":
        return AuthorsSmoothTopR(settings.share, settings.window)
    logarithmic = settings.similarity not in ABLATIONS
    if settings.fixed_threshold is not None:
        m = settings.fixed_threshold
        return FixedThreshold(m if not logarithmic else math.log(m) if m > 0 else -math.inf)
    if settings.threshold == "top-r":
        return TopR(settings.share)
    if settings.threshold == "smooth-top-r":
        return SmoothTopR(settings.share, settings.window, logarithmic)
    dtype = torch.promote_types(settings.memory_dtype, torch.float32)
    cut = otsu_cut if settings.threshold in BY_OTSU else None
    threshold = PerClassThreshold(settings.share, settings.window, settings.num_classes, dtype, cut)
    return CautiousThreshold(threshold, settings.window) if settings.threshold == "cautious" else threshold
