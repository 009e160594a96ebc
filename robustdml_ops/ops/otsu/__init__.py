"""Otsu's threshold: the cut of a batch of losses into two groups with the least variance inside them.

:func:`otsu_confidence` computes it together with ProcSim's confidences.
"""

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import choose, in_registry, op_in_graphs
from robustdml_ops.engine.validation import check_losses
from robustdml_ops.ops.lambert_w import check_lam, confidence
from robustdml_ops.ops.otsu.backends import BACKENDS, OtsuCut, empty_cut


def otsu_threshold(losses: Tensor, min_group: int = 2, dim: int = -1, *, backend: str | None = None) -> OtsuCut:
    """Threshold that divides losses into low and high with the least |C₀| Var(C₀) + |C₁| Var(C₁). Not differentiable.

    Exact: all cuts between sorted neighbours that differ are tried. The low group is ``losses <= threshold``.

    Parameters
    ----------
    losses : Tensor
        Floating point, any shape but (); computed in float64 where they are, else in float32.
    min_group : int
        Least number of losses in a group, at least 1.
    dim : int
        The dimension of the samples; the others are batch dimensions.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device. On a
        GPU the first two take one launch for up to 4096 losses (native, float32: 8192); longer rows take PyTorch's
        sort and a scan, as in ``"eager"``.

    Returns
    -------
    OtsuCut
        Tensors of the shape of ``losses`` without ``dim``, on its device; nothing waits for their values.

        - ``threshold``: midpoint of the two losses beside the cut; the lower of them where no number lies between. ∞
          where there is no cut: fewer than 2 ``min_group`` finite losses, all equal, or ties that leave no groups
          of that size. Every sample is in the low group then.
        - ``index``: int64, how many finite losses are in the low group.
        - ``low_mean``, ``high_mean``: means of the groups. Where there is no cut both are the mean of all finite
          losses, and 0 if there is none.
        - ``found``: bool.
        - ``excluded``: int64, the number of NaN and ±∞, which the cut leaves out.

    Raises
    ------
    ValueError, TypeError
        Not a floating-point tensor of at least one dimension, or ``min_group`` below 1.

    Notes
    -----
    Source: Barbany et al. (ProcSim), Algorithm 1, with C₀ = {ℓ < τ}. Of several best cuts the lowest is taken. Sums are
    of integers, in steps of 2⁻⁵¹ of the losses' range (2⁻⁴² for 10⁶ of them): the same on every backend.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import otsu_threshold
    >>> cut = otsu_threshold(torch.tensor([0.1, 4.0, 0.3, 0.2, 5.0]))
    >>> cut.threshold, cut.index, cut.low_mean, cut.high_mean
    (tensor(2.1500), tensor(3), tensor(0.2000), tensor(4.5000))
    >>> otsu_threshold(torch.ones(2, 8), dim=1).found  # two batches, all equal
    tensor([False, False])
    """
    losses = check_losses(losses)
    if losses.dim() == 0:
        raise ValueError("losses must have at least one dimension, got a single number: a cut takes a batch")
    _check_min_group(min_group)
    values = losses.detach() if losses.requires_grad else losses
    if dim != -1:
        values = values.movedim(dim, -1)
    return OtsuCut(*_best_cut(values, min_group, backend or "auto"))


def otsu_confidence(
    losses: Tensor, lam: float, min_group: int = 2, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Otsu's threshold of a batch and ProcSim's confidence in each of its losses. Constants.

    The same numbers as :func:`otsu_threshold` and then :func:`~robustdml_ops.ops.confidence` give, for less than half
    of the time where the batch is small.

    Parameters
    ----------
    losses : Tensor
        (n,), floating point; computed in float64 where they are, else in float32.
    lam : float
        λ > 0 and finite, as of :func:`~robustdml_ops.ops.confidence`.
    min_group, backend
        As in :func:`otsu_threshold`.

    Returns
    -------
    tuple of Tensor
        τ, (), and σ, (n,). Where there is no cut τ is ∞ and σ is 1. The cut leaves out NaN and ±∞; σ of NaN is NaN,
        σ of ∞ is 0.

    Raises
    ------
    ValueError, TypeError
        Losses that are not a floating-point vector, ``min_group`` below 1, λ that is not a positive number of the
        type's range.

    Notes
    -----
    Source: Barbany et al. (ProcSim), Algorithm 1 and Eq. 3.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import otsu_confidence
    >>> otsu_confidence(torch.tensor([0.1, 4.0, 0.3, 0.2, 5.0]), lam=1.0)
    (tensor(2.1500), tensor([1.0000, 0.5831, 1.0000, 1.0000, 0.4944]))
    """
    losses = check_losses(losses)
    if losses.dim() != 1:
        raise ValueError(
            f"losses must be one batch, (n,), got shape {tuple(losses.shape)}: take otsu_threshold(losses, dim=…) and "
            "confidence"
        )
    _check_min_group(min_group)
    check_lam(lam, losses.dtype)
    if losses.requires_grad:
        losses = losses.detach()
    both = None
    if not in_registry(losses):
        both = choose(BACKENDS, backend, losses.device, losses.dtype).otsu_confidence(losses, min_group, lam)
    if both is None:
        threshold = otsu_threshold(losses, min_group, backend=backend).threshold
        both = threshold, confidence(losses, threshold, lam, backend=backend)
    return both


def _check_min_group(min_group: int) -> None:
    if not isinstance(min_group, int) or min_group < 1:
        raise ValueError(f"min_group must be an integer of at least 1, got {min_group}")


@op_in_graphs("otsu", lambda values, *_: empty_cut(values))
def _best_cut(values: Tensor, min_group: int, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    chosen = choose(BACKENDS, backend, values.device, values.dtype)
    if values.shape[-1] > 0:
        return chosen.otsu_cut(values, min_group)
    # A row of one NaN, which is left out, stands for an empty row.
    cut = chosen.otsu_cut(values.new_full((*values.shape[:-1], 1), torch.nan), min_group)
    return cut._replace(excluded=torch.zeros_like(cut.excluded))
