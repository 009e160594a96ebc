"""SuperLoss, Castells et al. 2020: a loss weighed by the confidence that it implies."""

import torch
from torch import Tensor, nn

from robustdml_ops.losses.reduction import check_reduction, reduce_samples
from robustdml_ops.ops import superloss
from robustdml_ops.robust.loss_thresholds import RunningMean
from robustdml_ops.rows.lengths import unit_rows
from robustdml_ops.validation import check_finite_embeddings, check_labels, check_losses, check_matrix, check_positive


class SuperLoss(nn.Module):
    """Least (ℓ − τ)σ + λ log²σ over the confidence σ of each loss; the gradient is that of σ·ℓ with σ constant.

        σ = exp(−W(½ max(−2/e, (ℓ − τ)/λ)))

    Losses above τ count less, losses below up to e times as much.

    Parameters
    ----------
    lam : float
        λ > 0.
    tau : float, optional
        τ, such as log C for a cross-entropy. None: the mean of all losses of all training batches so far, kept in
        ``state_dict``.
    reduction : {"mean", "none"}
        ``"mean"``: (), over the samples. ``"none"``: of the shape of the losses.

    Notes
    -----
    Source: Castells, Weinzaepfel, Revaud, "SuperLoss: A Generic Loss for Robust Curriculum Learning", NeurIPS 2020, as
    in Barbany et al. (ProcSim), Eqs. 1 and 2.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ProxyNCALoss, SuperLoss
    >>> per_sample, robust = ProxyNCALoss(10, 64, reduction="none"), SuperLoss(lam=1.0)
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> robust(per_sample(embeddings, torch.randint(10, (32,)))).backward()
    >>> robust.running.count
    tensor(32)
    """

    def __init__(self, lam: float = 1.0, tau: float | None = None, *, reduction: str = "mean") -> None:
        super().__init__()
        check_positive(lam=lam)
        check_reduction(reduction)
        self.lam = lam
        self.tau = tau
        self.reduction = reduction
        if tau is None:
            self.running = RunningMean()

    def forward(self, losses: Tensor) -> Tensor:
        """Of losses (B,), floating point, with their graph; an empty batch gives 0."""
        losses = check_losses(losses)
        tau = self.running(losses.detach()) if self.tau is None else self.tau
        return reduce_samples(superloss(losses, tau, self.lam), None, self.reduction)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"lam={self.lam}, tau={self.tau}"


class SuperContrastiveLoss(nn.Module):
    """The contrastive loss with a SuperLoss on every pair: the baseline that ProcSim compares itself with.

        ℓ_ij = [d_ij − m⁺]₊ if y_i = y_j else [m⁻ − d_ij]₊,    d_ij = ‖x̂_i − x̂_j‖,    i ≠ j

    τ is a running mean of its own for positive and for negative pairs, over all of them; the loss is the mean over the
    positive pairs with ℓ > 0 plus that over the negative ones.

    Parameters
    ----------
    pos_margin, neg_margin : float
        m⁺ and m⁻.
    lam : float
        λ > 0.

    Notes
    -----
    Every pair has a confidence, so unlike the other losses this one holds some eight B×B matrices.

    Source: Castells et al. 2020; margins and means over the pairs that are still wrong as pytorch-metric-learning's
    ``ContrastiveLoss``, which Barbany et al. (ProcSim, section 4.2) weigh pair by pair.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import SuperContrastiveLoss
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> SuperContrastiveLoss(lam=1.0)(embeddings, torch.arange(32) // 4).backward()
    >>> embeddings.grad.shape
    torch.Size([32, 64])
    """

    def __init__(self, pos_margin: float = 0.0, neg_margin: float = 1.0, lam: float = 1.0) -> None:
        super().__init__()
        check_positive(lam=lam)
        self.pos_margin = pos_margin
        self.neg_margin = neg_margin
        self.lam = lam
        self.positive = RunningMean()
        self.negative = RunningMean()

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Loss (), of embeddings (B, D) and labels (B,); without pairs a 0 connected to the graph."""
        check_matrix("embeddings", embeddings)
        labels = check_labels(labels, embeddings)
        check_finite_embeddings(embeddings)
        distances = _distances(embeddings)
        same = labels[:, None] == labels
        losses = torch.where(same, distances - self.pos_margin, self.neg_margin - distances).clamp(min=0)
        positive, negative = same & ~torch.eye(len(labels), dtype=torch.bool, device=same.device), ~same
        found = losses.detach()
        tau = torch.where(same, self.positive(found, positive), self.negative(found, negative))
        robust = superloss(losses, tau, self.lam)
        total = robust.new_zeros(())
        for pairs in (positive & (found > 0), negative & (found > 0)):
            total = total + (robust * pairs).sum() / pairs.sum().clamp(min=1)
        return total

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"pos_margin={self.pos_margin}, neg_margin={self.neg_margin}, lam={self.lam}"


def _distances(embeddings: Tensor) -> Tensor:
    """‖x̂_i − x̂_j‖, (B, B); 0 and without gradient where two vectors are nearer than the type resolves."""
    with torch.autocast(embeddings.device.type, enabled=False):
        X = unit_rows(embeddings if embeddings.dtype == torch.float64 else embeddings.float())
        squared = 2 - 2 * (X @ X.t())
    apart = squared > 8 * torch.finfo(X.dtype).eps
    return torch.where(apart, squared.masked_fill(~apart, 1).sqrt(), 0.0)
