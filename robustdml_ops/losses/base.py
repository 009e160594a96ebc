"""What the losses of the Proxy-Anchor family share: proxies, biases and the two divisors."""

import torch
from torch import Tensor, nn

from robustdml_ops.anchor.problem import ConfidenceSets
from robustdml_ops.label_sets import LabelSets
from robustdml_ops.losses.reduction import check_reduction
from robustdml_ops.ops import AnchorBiases, anchor_loss, anchor_lse, similarity
from robustdml_ops.sweep import compute_dtype
from robustdml_ops.validation import check_matrix, check_positive, check_same_device, check_sample_weights, check_sizes


class AnchorFamilyLoss(nn.Module):
    """One proxy per class, (C, D), and the sums over the batch that each of them is the anchor of."""

    def __init__(
        self, num_classes: int, embedding_size: int, alpha: float, reduction: str, backend: str | None
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, embedding_size=embedding_size)
        check_positive(alpha=alpha)
        check_reduction(reduction)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.alpha = alpha
        self.reduction = reduction
        self.backend = backend
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_size))
        # As in the authors' code: the scale does not matter to the cosine, but to the first steps of the optimiser.
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Cosines of ``embeddings`` (B, D) with all proxies, (B, C), materialised."""
        return similarity(embeddings, self.proxies)

    def extra_repr(self) -> str:
        """Return the settings, for ``repr``."""
        return f"num_classes={self.num_classes}, embedding_size={self.embedding_size}, alpha={self.alpha}"

    def _check(self, embeddings: Tensor) -> None:
        check_matrix("embeddings", embeddings, columns=self.embedding_size)
        check_same_device(embeddings=embeddings, proxies=self.proxies)

    def _log_weights(self, sample_weights: Tensor | None, embeddings: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log u (B,) in the compute type, and which samples are present (None: all). A weight of 0 has no gradient."""
        zeros = embeddings.new_zeros(len(embeddings), dtype=compute_dtype(embeddings, self.proxies))
        if sample_weights is None:
            return zeros, None
        weights = check_sample_weights(sample_weights, zeros)
        present = weights > 0
        return weights.masked_fill(~present, 1).log().masked_fill(~present, -torch.inf), present

    def _reduce(
        self,
        embeddings: Tensor,
        sets: LabelSets | ConfidenceSets,
        biases: AnchorBiases,
        positive_count: Tensor,
        negative_count: Tensor,
    ) -> Tensor:
        """Σ_p positive_p/|P⁺| + negative_p/|P⁻|, or the vector of its terms. An empty set's sum is 0."""
        positive_scale, negative_scale = (
            count.clamp(min=1).to(biases.positive.dtype).reciprocal() for count in (positive_count, negative_count)
        )
        if self.reduction == "mean":
            return anchor_loss(
                embeddings,
                self.proxies,
                sets,
                biases,
                positive_scale,
                negative_scale,
                alpha=self.alpha,
                backend=self.backend,
            )
        lse = anchor_lse(embeddings, self.proxies, sets, biases, alpha=self.alpha, backend=self.backend)
        return lse.positive * positive_scale + lse.negative * negative_scale
