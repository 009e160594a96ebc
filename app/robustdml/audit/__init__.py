"""Find wrong labels: every sample of a data set is judged by its features."""

from robustdml.audit.auditor import LabelAuditor
from robustdml.audit.batches import BatchAuditor
from robustdml.audit.verdicts import VERDICTS

__all__ = ["VERDICTS", "BatchAuditor", "LabelAuditor"]
