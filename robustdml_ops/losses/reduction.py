"""From one loss per sample to the loss of a batch."""

from torch import Tensor

from robustdml_ops.engine.validation import check_sample_weights

REDUCTIONS = ("mean", "none")


def reduce_samples(losses: Tensor, sample_weights: Tensor | None, reduction: str) -> Tensor:
    """Weighted losses (B,), or their mean (): Σ w_i ℓ_i / max(1, number of w_i > 0)."""
    if sample_weights is None:
        return losses if reduction == "none" else losses.sum() / max(len(losses), 1)
    weights = check_sample_weights(sample_weights, losses)
    weighted = weights * losses
    if reduction == "none":
        return weighted
    return weighted.sum() / (weights > 0).sum().clamp(min=1)
