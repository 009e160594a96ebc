"""From one loss per sample to the loss of a batch."""

from torch import Tensor


def mean_over_samples(losses: Tensor, sample_weights: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Σ_i u_i ℓ_i over the number of samples with u_i ≠ 0, that sum itself ("sum"), or all u_i ℓ_i ("none").

    Parameters
    ----------
    losses : Tensor, (B,)
        Losses ℓ of the samples.
    sample_weights : Tensor, (B,), optional
        u, not negative; None means 1 for every sample. 0: the sample is absent.
    reduction : {"mean", "sum", "none"}

    Returns
    -------
    Tensor, () or (B,)
        Without samples the mean is 0, connected to the graph.

    Examples
    --------
    >>> import torch
    >>> mean_over_samples(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1.0, 0.5, 0.0]))
    tensor(1.)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    if sample_weights is not None:
        losses = losses * sample_weights.to(losses.dtype)
    if reduction == "mean":
        return losses.sum() / count_present(losses, sample_weights)
    return losses if reduction == "none" else losses.sum()


def count_present(losses: Tensor, sample_weights: Tensor | None) -> int:
    """Samples whose weight is not 0, but at least 1, so that a mean over none of them is 0 / 1."""
    return max(1, len(losses) if sample_weights is None else int((sample_weights > 0).sum()))
