"""SuperLoss, Castells et al. 2020: a loss weighed by the confidence that it implies; and thresholds of losses."""

import importlib.util
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from robustdml_ops.backends.dispatch import op_in_graphs
from robustdml_ops.engine.shards import ONE_PROCESS, OneProcess, ShownSettings, TypedBuffers
from robustdml_ops.engine.validation import (
    check_choice,
    check_finite_numbers,
    check_losses,
    check_positive,
    check_same_device,
    check_sample_weights,
)
from robustdml_ops.losses.inputs import reduce_samples
from robustdml_ops.losses.options import REDUCTIONS, Reduction
from robustdml_ops.ops import superloss


class SuperLoss(ShownSettings, nn.Module):
    """Least (ℓ − τ)σ + λ log²σ over the confidence σ of each loss; the gradient is that of σ·ℓ with σ constant.

        σ = exp(−W(½ max(−2/e, (ℓ − τ)/λ)))

    Losses above τ count less, losses below up to e times as much.

    Source: Castells, Weinzaepfel, Revaud, "SuperLoss: A Generic Loss for Robust Curriculum Learning", NeurIPS 2020, as
    in Barbany et al. (ProcSim), Eqs. 1 and 2.

    Parameters
    ----------
    lam : float
        λ > 0: the larger, the nearer every weight σ is to 1.
    tau : float, optional
        τ, such as log C for a cross-entropy. None: the mean of all losses of all training batches so far, kept in
        ``state_dict``.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: (), over the samples. ``"none"``: of the shape of the losses.
        ``"sum"``: the sum of what ``"none"`` gives.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyNCALoss, SuperLoss
    >>> per_sample, robust = ProxyNCALoss(10, 64, reduction="none"), SuperLoss(lam=1.0)
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> robust(per_sample(embeddings, torch.randint(10, (32,)))).backward()
    """

    shown = ("lam", "tau")

    def __init__(self, lam: float = 1.0, tau: float | None = None, *, reduction: Reduction = "mean") -> None:
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


# Thresholds between losses of right and of wrong labels, besides Otsu's: modules of a batch of losses.


class RunningMean(TypedBuffers):
    """The mean of all finite losses of all training batches so far, this one included; in eval mode it stands still."""

    mean: Tensor  # () float32, and () int64: how many losses it is the mean of
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float32))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def forward(self, losses: Tensor, counted: Tensor | None = None, shards: OneProcess = ONE_PROCESS) -> Tensor:
        """() of losses of any shape, in their type; ``counted`` (bool) masks them. ``shards`` sums over processes."""
        check_same_device(losses=losses, **{"the running mean": self.mean})
        values = losses.float()  # what float32 can't hold would make the mean inf for good
        finite = torch.isfinite(values)
        counted = finite if counted is None else finite & counted
        new = shards.sum_over_processes(counted.sum())
        count = self.count + new
        # Shares of the mean, not a sum that is divided: the sum of large losses overflows.
        share = count.clamp(min=1).to(values.dtype).reciprocal()
        # In double: so parts of other processes round to the same mean, whatever their number.
        added = shards.sum_over_processes((values.masked_fill(~counted, 0) * share).sum(dtype=torch.float64))
        mean = (self.mean + (added - new * share * self.mean)).float()
        if self.training:
            self.mean.copy_(mean)
            self.count.copy_(count)
            return mean.to(losses.dtype)
        # Before any training, the mean of this batch.
        return torch.where(self.count > 0, self.mean, mean).to(losses.dtype)


class MixtureThreshold(nn.Module):
    """Where, between a Gaussian mixture's two means, the high component becomes the likelier; else ∞. On the CPU."""

    def __init__(self) -> None:
        super().__init__()
        if importlib.util.find_spec("sklearn") is None:
            raise ImportError("threshold='gmm' needs scikit-learn: pip install scikit-learn, or take threshold='otsu'")

    def forward(self, losses: Tensor) -> Tensor:
        """() of losses (n,)."""
        return mixture_threshold(losses.detach())


@op_in_graphs("mixture_threshold", lambda losses: losses.new_empty(()))
def mixture_threshold(losses: Tensor) -> Tensor:
    """Registered, so that ``torch.compile`` does not look into scikit-learn."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    values = losses.double().cpu().numpy()
    values = values[np.isfinite(values)]
    if len(values) < 2 or values.max() == values.min():
        return losses.new_tensor(np.inf)
    # Scaled, so that the variance that scikit-learn adds means the same for losses of any size.
    center, spread = values.mean(), values.std()
    z = (values - center)[:, None] / spread
    # A start of its own for every parameter: nothing is left to chance.
    mixture = GaussianMixture(
        2,
        weights_init=[0.5, 0.5],
        means_init=np.quantile(z, [0.25, 0.75])[:, None],
        precisions_init=np.ones((2, 1, 1)),
        init_params="random_from_data",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last step's components serve as well
        mixture.fit(z)
    low, high = np.argsort(mixture.means_[:, 0])
    mean, variance = mixture.means_[:, 0], mixture.covariances_[:, 0, 0]
    # log(w N(z)) of the high component less that of the low one is a parabola in z.
    at_zero = np.log(mixture.weights_) - 0.5 * np.log(variance) - 0.5 * mean**2 / variance
    a, b, c = (of_both[high] - of_both[low] for of_both in (-0.5 / variance, mean / variance, at_zero))
    roots = [root.real for root in np.roots([a, b, c]) if root.imag == 0]
    rising = [root for root in roots if mean[low] < root < mean[high] and 2 * a * root + b > 0]
    return losses.new_tensor(center + spread * rising[0] if rising else np.inf)


THRESHOLDS: dict[str, type[nn.Module]] = {"mean": RunningMean, "gmm": MixtureThreshold}
