"""Differentiable operations: the losses are made of these, and so may be others."""

from robustdml_ops.engine.problem import ConfidenceSets, LabelSets
from robustdml_ops.ops.anchor_lse import AnchorBiases, AnchorLSE, anchor_loss, anchor_lse
from robustdml_ops.ops.similarity import similarity

__all__ = ["AnchorBiases", "AnchorLSE", "ConfidenceSets", "LabelSets", "anchor_loss", "anchor_lse", "similarity"]
