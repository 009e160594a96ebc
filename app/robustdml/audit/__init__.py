"""Find wrong labels: every sample of a data set is judged by its features."""

from robustdml.audit.auditor import VERDICTS, LabelAuditor

__all__ = ["VERDICTS", "LabelAuditor"]
