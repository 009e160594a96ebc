"""The training methods by name, and their settings."""

from robustdml_ops.recipes.methods.anchors import ANCHOR_METHODS, AdaptiveOptions, AnchorOptions, SmoothOptions
from robustdml_ops.recipes.methods.confident import CONFIDENT_METHODS, ProcSimOptions, SuperLossOptions
from robustdml_ops.recipes.methods.method import Method
from robustdml_ops.recipes.methods.pairs import (
    PAIR_METHODS,
    ContrastiveOptions,
    MemoryContrastiveOptions,
    MultiSimilarityOptions,
)
from robustdml_ops.recipes.methods.robust import ROBUST_METHODS
from robustdml_ops.recipes.methods.self_paced import SELF_PACED_METHODS, SelfPacedOptions
from robustdml_ops.recipes.methods.softmax import (
    SOFTMAX_METHODS,
    NormalizedSoftmaxOptions,
    ProxyNCAOptions,
    SoftTripleOptions,
)

METHODS: dict[str, Method] = {
    **ROBUST_METHODS,
    **ANCHOR_METHODS,
    **SOFTMAX_METHODS,
    **PAIR_METHODS,
    **CONFIDENT_METHODS,
    **SELF_PACED_METHODS,
}

__all__ = [
    "METHODS",
    "AdaptiveOptions",
    "AnchorOptions",
    "ContrastiveOptions",
    "MemoryContrastiveOptions",
    "Method",
    "MultiSimilarityOptions",
    "NormalizedSoftmaxOptions",
    "ProcSimOptions",
    "ProxyNCAOptions",
    "SelfPacedOptions",
    "SmoothOptions",
    "SoftTripleOptions",
    "SuperLossOptions",
]
