"""The training methods by name."""

from robustdml_ops.recipes.methods.anchors import ANCHOR_METHODS, AnchorOptions, SmoothOptions
from robustdml_ops.recipes.methods.method import Method

METHODS: dict[str, Method] = {**ANCHOR_METHODS}

__all__ = ["METHODS", "AnchorOptions", "Method", "SmoothOptions"]
