"""From one loss per sample to the loss of a batch."""

from torch import Tensor

from robustdml_ops.engine.validation import check_sample_weights

REDUCTIONS = ("mean", "none")


def check_reduction(reduction: str) -> None:
    """Refuse what is not in REDUCTIONS."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: expected one of {', '.join(REDUCTIONS)}")


def reduce_samples(losses: Tensor, sample_weights: Tensor | None, reduction: str) -> Tensor:
    """Losses (B,) times their weights, and of that the mean, (), over the samples whose weight is not 0.

    So a mask of zeros and ones gives the loss of the samples that it keeps. Weights between are not divided by their
    sum: a batch of doubtful samples takes a smaller step. Where nothing is kept the mean is 0, connected to the graph.
    """
    if sample_weights is None:
        return losses if reduction == "none" else losses.sum() / max(len(losses), 1)
    weights = check_sample_weights(sample_weights, losses)
    weighted = weights * losses
    if reduction == "none":
        return weighted
    return weighted.sum() / (weights > 0).sum().clamp(min=1)
