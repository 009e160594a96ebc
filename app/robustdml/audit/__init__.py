"""Find wrong labels: every sample of a data set is judged by its features."""

from robustdml.audit.auditor import VERDICTS, LabelAuditor
from robustdml.audit.batches import BatchAuditor

__all__ = ["VERDICTS", "BatchAuditor", "LabelAuditor"]
