"""What the losses on pairs share: who takes part, and what a sample's loss weighs."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from robustdml_ops.losses.reduction import check_reduction
from robustdml_ops.pairs.autograd import pair_dtype
from robustdml_ops.validation import check_labels, check_matrix, check_same_device, check_sample_weights


class PairBatch(NamedTuple):
    """The checked input of a loss on pairs."""

    pairs: tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # embeddings, labels, candidates, candidate labels
    weights: Tensor | None  # (B,) compute type
    kept: Tensor | int  # () samples whose weight is not 0, at least 1

    @property
    def share(self) -> Tensor:
        """What each sample's loss weighs in the mean, () or (B,): its weight by the number of samples kept."""
        embeddings, _, candidates, _ = self.pairs
        one = embeddings.new_ones((), dtype=pair_dtype(embeddings, candidates))
        return (one if self.weights is None else self.weights) / self.kept


class PairFamilyLoss(nn.Module):
    """One loss per sample, of its pairs with the batch or with given candidates; a subclass has the terms."""

    def __init__(self, reduction: str, backend: str | None) -> None:
        super().__init__()
        check_reduction(reduction)
        self.reduction = reduction
        self.backend = backend

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch.

        Parameters
        ----------
        embeddings : Tensor
            (B, D), floating point, any scale.
        labels : Tensor
            (B,) integers. A sample labelled below 0 takes no part: no pair has it.
        ref_emb, ref_labels : Tensor, optional
            (m, D) and (m,): rows of a memory bank or of another batch, see the class. Differentiable; rows that need no
            gradient cost none. A label below 0 marks a row that takes no part, such as an empty slot.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the samples' losses; differentiable. A sample of weight 0 is absent, also among the
            candidates of the others, and the mean divides by the number of the other samples: so a mask of zeros and
            ones gives the loss of the batch without the samples that it drops.

        Returns
        -------
        Tensor
            () or (B,), see ``reduction``. A sample without pairs adds 0. Without samples, or with none kept, the mean
            is 0, connected to the graph.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit; on the CPU NaN or inf (on a GPU, where a check would stall the
            stream, the loss is NaN).
        """
        return self._loss(self._batch(embeddings, labels, ref_emb, ref_labels, sample_weights))

    def _loss(self, batch: PairBatch) -> Tensor:
        raise NotImplementedError

    def _batch(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        sample_weights: Tensor | None,
    ) -> PairBatch:
        check_matrix("embeddings", embeddings)
        labels = check_labels(labels, embeddings)
        if ref_emb is None:
            if ref_labels is not None:
                raise ValueError("ref_labels without ref_emb: give both, or neither, for the batch itself")
        else:
            check_matrix("ref_emb", ref_emb, columns=embeddings.shape[1])
            check_same_device(embeddings=embeddings, ref_emb=ref_emb)
            ref_labels = check_labels(ref_labels, ref_emb, "ref_labels", "ref_emb")
        if sample_weights is None:
            return PairBatch((embeddings, labels, ref_emb, ref_labels), None, max(1, len(labels)))
        like = embeddings.new_empty(len(embeddings), dtype=pair_dtype(embeddings, ref_emb))
        weights = check_sample_weights(sample_weights, like)
        absent = weights == 0
        kept = (~absent).sum().clamp(min=1)
        return PairBatch((embeddings, labels.masked_fill(absent, -1), ref_emb, ref_labels), weights, kept)

    def _in_one_sweep(self, batch: PairBatch) -> bool:
        """Whether the weight of each sample's loss is known beforehand, and wants no gradient."""
        known = batch.weights is None or not (batch.weights.requires_grad and torch.is_grad_enabled())
        return self.reduction == "mean" and known
