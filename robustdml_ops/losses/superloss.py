"""SuperLoss, Castells et al. 2020: a loss weighed by the confidence that it implies."""

from torch import Tensor, nn

from robustdml_ops.engine.validation import (
    check_choice,
    check_finite_numbers,
    check_losses,
    check_positive,
    check_sample_weights,
)
from robustdml_ops.losses.inputs import REDUCTIONS, reduce_samples
from robustdml_ops.losses.loss_thresholds import RunningMean
from robustdml_ops.ops import superloss


class SuperLoss(nn.Module):
    """Least (ℓ − τ)σ + λ log²σ over the confidence σ of each loss; the gradient is that of σ·ℓ with σ constant.

        σ = exp(−W(½ max(−2/e, (ℓ − τ)/λ)))

    Losses above τ count less, losses below up to e times as much.

    Source: Castells, Weinzaepfel, Revaud, "SuperLoss: A Generic Loss for Robust Curriculum Learning", NeurIPS 2020, as
    in Barbany et al. (ProcSim), Eqs. 1 and 2.

    Parameters
    ----------
    lam : float
        λ > 0.
    tau : float, optional
        τ, such as log C for a cross-entropy. None: the mean of all losses of all training batches so far, kept in
        ``state_dict``.
    reduction : {"mean", "none"}
        ``"mean"``: (), over the samples. ``"none"``: of the shape of the losses.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyNCALoss, SuperLoss
    >>> per_sample, robust = ProxyNCALoss(10, 64, reduction="none"), SuperLoss(lam=1.0)
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> robust(per_sample(embeddings, torch.randint(10, (32,)))).backward()
    """

    def __init__(self, lam: float = 1.0, tau: float | None = None, *, reduction: str = "mean") -> None:
        super().__init__()
        check_positive(lam=lam)
        if tau is not None:
            check_finite_numbers(tau=tau)
        check_choice(REDUCTIONS, reduction=reduction)
        self.lam, self.tau, self.reduction = lam, tau, reduction
        if tau is None:
            self.running = RunningMean()

    def forward(self, losses: Tensor, *, sample_weights: Tensor | None = None) -> Tensor:
        """Loss of a batch of losses, () or of the shape of ``losses``; an empty batch gives 0.

        Parameters
        ----------
        losses : Tensor
            (B,), floating point, with their graph. Without weights any shape.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the samples' terms. A sample of weight 0 is absent: it has no part in the running mean,
            and the mean divides by the number of the other samples.

        Raises
        ------
        ValueError, TypeError
            Shapes or types that do not fit; on the CPU weights that are negative or not finite.
        """
        losses = check_losses(losses)
        if losses.dim() == 0:
            raise ValueError('losses must have one entry for each sample, got a single number: take reduction="none"')
        present = None
        if sample_weights is not None:
            sample_weights = check_sample_weights(sample_weights, losses)
            present = sample_weights > 0
            losses = losses.masked_fill(~present, 0)
        tau = self.running(losses.detach(), present) if self.tau is None else self.tau
        return reduce_samples(superloss(losses, tau, self.lam), sample_weights, self.reduction)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"lam={self.lam}, tau={self.tau}"
