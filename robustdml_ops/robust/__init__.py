"""Who is clean: what tells right labels from wrong ones."""

from robustdml_ops.robust.confidence_head import ConfidenceHead

__all__ = ["ConfidenceHead"]
