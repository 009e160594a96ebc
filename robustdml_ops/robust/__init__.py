"""Filters, weights and confidences that separate right labels from wrong ones."""

from robustdml_ops.robust.balanced_self_paced import BalancedSelfPaced
from robustdml_ops.robust.bank.memory_bank import MemoryBank
from robustdml_ops.robust.confidence_head import ConfidenceHead
from robustdml_ops.robust.label_correction import LabelCorrection
from robustdml_ops.robust.own_class import OwnClassFilter, OwnClassResult
from robustdml_ops.robust.prism.class_logits import VmfClasses
from robustdml_ops.robust.prism.prism import PRISM, PRISMResult

__all__ = [
    "PRISM",
    "BalancedSelfPaced",
    "ConfidenceHead",
    "LabelCorrection",
    "MemoryBank",
    "OwnClassFilter",
    "OwnClassResult",
    "PRISMResult",
    "VmfClasses",
]
