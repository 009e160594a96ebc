"""The contrastive loss with a SuperLoss on every pair, Castells et al. 2020."""

import torch
from torch import Tensor, nn

from robustdml_ops.backends.dispatch import compute_dtype, without_autocast
from robustdml_ops.engine.labels import check_labels
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.validation import check_finite_numbers, check_matrix, check_positive
from robustdml_ops.losses.families.metric_loss import ShardableLoss
from robustdml_ops.losses.inputs import own_samples
from robustdml_ops.losses.superloss import RunningMean
from robustdml_ops.ops import superloss
from robustdml_ops.ops.pair_distances import pair_distances


class SuperContrastiveLoss(ShardableLoss, nn.Module):
    """The contrastive loss with a SuperLoss on every pair: the baseline that ProcSim compares itself with.

        ℓ_ij = [d_ij − m⁺]₊ if y_i = y_j else [m⁻ − d_ij]₊,    d_ij = ‖x̂_i − x̂_j‖,    i ≠ j

    τ is a running mean of its own for positive and for negative pairs, over all of them; the loss is the mean over the
    positive pairs with ℓ > 0 plus that over the negative ones.

    Every pair has a confidence, so unlike the other losses this one holds some ten B×B matrices, on shards the rows of
    own samples. Equal vectors have distance 0 and no gradient.

    Source: Castells et al. 2020; margins and means over the pairs that are still wrong as pytorch-metric-learning's
    ``ContrastiveLoss``, which Barbany et al. (ProcSim, section 4.2) weigh pair by pair.

    Parameters
    ----------
    pos_margin, neg_margin, lam : float
        m⁺, m⁻, and λ > 0.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import SuperContrastiveLoss
    >>> embeddings = torch.randn(32, 64, requires_grad=True)
    >>> SuperContrastiveLoss(lam=1.0)(embeddings, torch.arange(32) // 4).backward()
    """

    shown = ("pos_margin", "neg_margin", "lam")

    def __init__(self, pos_margin: float = 0.0, neg_margin: float = 1.0, lam: float = 1.0) -> None:
        super().__init__()
        check_finite_numbers(pos_margin=pos_margin, neg_margin=neg_margin)
        check_positive(lam=lam)
        self.pos_margin, self.neg_margin, self.lam = pos_margin, neg_margin, lam
        self.positive = RunningMean()
        self.negative = RunningMean()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: object = None,
        ref_emb: object = None,
        ref_labels: object = None,
        *,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch, (); without pairs a 0 connected to the graph.

        Parameters
        ----------
        embeddings, labels : Tensor
            (B, D), floating point, any scale; (B,) integers.
        indices_tuple, ref_emb, ref_labels : None
            For trainers that pass all five arguments: this loss takes all pairs of one batch, and refuses others.
        sample_weights : Tensor, optional
            (B,), ≥ 0: that of sample i multiplies the terms of its pairs (i, j); differentiable. A sample of weight 0
            is absent: no pair has it, in the loss, its means and the running means alike.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit, pairs or candidates given; on the CPU NaN or inf.
        """
        for name, value in (("indices_tuple", indices_tuple), ("ref_emb", ref_emb), ("ref_labels", ref_labels)):
            if value is not None:
                raise ValueError(
                    f"{name} must be None, got {type(value).__name__}: SuperContrastiveLoss takes all pairs of one "
                    "batch, since its running means are over all of them; ContrastiveLoss serves other pairs"
                )

        def check() -> OwnRows:
            classes = check_labels(labels, check_matrix("embeddings", embeddings))
            return {"labels": classes, **own_samples(embeddings, sample_weights, compute_dtype(embeddings, embeddings))}

        return self._of_joint_batch(check, self._fused_loss)

    def _fused_loss(self, embeddings: Tensor, labels: Tensor, sample_weights: Tensor | None) -> Tensor:
        """The loss of the checked joint batch."""
        shards, own = self.shards, self.shards.own_slice()
        with without_autocast(embeddings.device):
            X = unit_rows(embeddings.to(compute_dtype(embeddings, embeddings)))
            distances = pair_distances(X, own if shards.divided else None)
        same = labels[own, None] == labels
        losses = torch.where(same, distances - self.pos_margin, self.neg_margin - distances).clamp(min=0)
        places = torch.arange(len(labels), device=same.device)
        positive, negative = same & (places[own, None] != places), ~same
        weights = sample_weights
        if weights is not None:
            present = (weights > 0) & (weights > 0)[own, None]
            positive, negative = positive & present, negative & present
        found = losses.detach()
        tau = torch.where(same, self.positive(found, positive, shards), self.negative(found, negative, shards))
        robust = superloss(losses, tau, self.lam)
        if weights is not None:
            robust = robust * weights[own, None]
        total = robust.new_zeros(())
        for pairs in (positive & (found > 0), negative & (found > 0)):
            total = total + (robust * pairs).sum() / shards.sum_over_processes(pairs.sum()).clamp(min=1)
        return shards.sum_terms(total)
