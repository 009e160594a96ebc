"""Every loss with inputs of a real size: what sections (c) and (e) walk. ``losses.__all__`` is held against it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops import losses

from ..shapes import Shape

TEXTS = 24  # columns of the text embeddings


@dataclass(frozen=True)
class Case:
    """A loss, and what it is given beside the embeddings."""

    make: Callable[[Shape], nn.Module]
    given: Callable[[Shape], dict[str, Any]]
    argument: str = "embeddings"

    def inputs(self, shape: Shape) -> tuple[Tensor, dict[str, Any]]:
        """What is differentiated, and the rest by name; the same each time."""
        torch.manual_seed(0)
        rows = torch.rand(shape.B) if self.argument == "losses" else torch.randn(shape.B, shape.D)
        return rows, self.given(shape)


def labels(shape: Shape) -> dict[str, Any]:
    """Four samples of a class, and classes that the batch has not."""
    return {"labels": torch.arange(shape.B) // 4 % shape.C}


def bank(shape: Shape) -> dict[str, Any]:
    rows = torch.randn(3 * shape.B + 1, shape.D)
    return {**labels(shape), "ref_emb": rows, "ref_labels": torch.arange(len(rows)) % shape.C}


CASES: dict[str, Case] = {
    "AdaptiveProxyAnchorLoss": Case(lambda s: losses.AdaptiveProxyAnchorLoss(s.C, s.D), labels),
    "ArcFaceLoss": Case(lambda s: losses.ArcFaceLoss(s.C, s.D), labels),
    "BSPMLLoss": Case(lambda s: losses.BSPMLLoss(), labels),
    "ContrastiveLoss": Case(lambda s: losses.ContrastiveLoss(), labels),
    "CosFaceLoss": Case(lambda s: losses.CosFaceLoss(s.C, s.D), labels),
    "LanguageGuidanceLoss": Case(
        lambda s: losses.LanguageGuidanceLoss(), lambda s: {"text_embeddings": torch.randn(s.B, 2, TEXTS)}
    ),
    "MemoryContrastiveLoss": Case(lambda s: losses.MemoryContrastiveLoss(), bank),
    "MultiSimilarityLoss": Case(lambda s: losses.MultiSimilarityLoss(epsilon=0.1), labels),
    "NormalizedSoftmaxLoss": Case(lambda s: losses.NormalizedSoftmaxLoss(s.C, s.D), labels),
    "ProcSimLoss": Case(lambda s: losses.ProcSimLoss(s.C, s.D), labels),
    "ProxyAnchorLoss": Case(lambda s: losses.ProxyAnchorLoss(s.C, s.D), labels),
    "ProxyNCALoss": Case(lambda s: losses.ProxyNCALoss(s.C, s.D), labels),
    "SmoothProxyAnchorLoss": Case(
        lambda s: losses.SmoothProxyAnchorLoss(s.C, s.D), lambda s: {"confidences": torch.rand(s.B, s.C) ** 4}
    ),
    "SoftTripleLoss": Case(lambda s: losses.SoftTripleLoss(s.C, s.D, 3), labels),
    "SubCenterArcFaceLoss": Case(lambda s: losses.SubCenterArcFaceLoss(s.C, s.D), labels),
    "SuperContrastiveLoss": Case(lambda s: losses.SuperContrastiveLoss(), labels),
    "SuperLoss": Case(lambda s: losses.SuperLoss(), lambda s: {}, "losses"),
}
