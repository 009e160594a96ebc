"""Checks of the arguments of a noise."""

from robustdml.arrays import Labels
from robustdml.errors import UsageError


def check_labels(labels: Labels, rate: float, num_classes: int) -> None:
    """Refuse labels and rates that no noise can work with."""
    if not 0 <= rate <= 1:
        raise UsageError(f"rate={rate}: the share of wrong labels must lie between 0 and 1")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UsageError(f"labels: {labels.dtype} of shape {labels.shape}; expected integers of shape (N,)")
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise UsageError(f"labels run from {labels.min()} to {labels.max()}; expected 0 to {num_classes - 1}")
    if num_classes < 2 and rate > 0 and len(labels):
        raise UsageError(f"num_classes={num_classes}: a wrong label needs a second class; use noise none")
