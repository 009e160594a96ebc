"""Which labels are wrong: every sample of a data set judged by its features, and what is told of it.

Needs scikit-learn (``pip install 'robustdml_ops[recipes]'``).
"""

from robustdml.audit.auditor import LabelAuditor
from robustdml.audit.batches import BatchAuditor
from robustdml.audit.verdicts import VERDICTS

__all__ = ["VERDICTS", "BatchAuditor", "LabelAuditor"]
