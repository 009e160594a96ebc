"""Language guidance, Roth et al. 2022: similarities between images shall resemble those between words."""

from typing import Literal

import torch
from torch import Tensor, nn

from robustdml_ops.backends.dispatch import compute_dtype, without_autocast
from robustdml_ops.engine.labels import check_labels
from robustdml_ops.engine.rows.lengths import unit_rows
from robustdml_ops.engine.shards import OwnRows
from robustdml_ops.engine.validation import (
    check_choice,
    check_finite_numbers,
    check_finite_rows,
    check_matrix,
    check_positive,
    check_same_device,
    check_tensor,
)
from robustdml_ops.losses.families.metric_loss import ShardableLoss
from robustdml_ops.losses.inputs import own_samples
from robustdml_ops.losses.options import REDUCTIONS, Reduction


class LanguageGuidanceLoss(ShardableLoss, nn.Module):
    """Divergence, row by row, between the similarities of a batch's embeddings and those of its texts.

        A = X̂ X̂ᵀ,   T = 1/k Σ_j t̂_j t̂_jᵀ,   p = softmax_rows(A/c),   q = softmax_rows(T/c)
        ℓ_i = c² · KL(q_i ‖ p_i)  or  c² · KL(p_i ‖ q_i)

    Some six B×B matrices are materialised, in float32 at least; on shards the rows of own samples alone.

    Source: Roth, Vinyals, Akata, "Integrating Language Guidance into Vision-based Deep Metric Learning", CVPR 2022;
    Barbany et al., "ProcSim", 2024, section 3.5.

    Parameters
    ----------
    direction : {"forward", "backward"}
        ``"forward"``: KL(language ‖ visual), the authors' choice; ``"backward"``: KL(visual ‖ language).
    shift : float, optional
        None: the matrices as they are, without labels, as ProcSim describes it. A number: as the authors' code, whose
        value is 1, the entries of equal labels are 1 + shift in both matrices and all of T is raised by shift. Labels,
        and so wrong ones, then take part.
    temperature : float
        Temperature c > 0 of both softmaxes.
    reduction : {"mean", "sum", "none"}
        ``"mean"``: the loss, (). ``"none"``: ℓ, (B,), as :class:`~robustdml_ops.losses.ProcSimLoss` takes it.
        ``"sum"``: the sum of what ``"none"`` gives.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import LanguageGuidanceLoss
    >>> embeddings = torch.randn(8, 64, requires_grad=True)
    >>> names = torch.randn(8, 5, 512)  # of the 5 classes that a classifier finds likeliest for each image
    >>> LanguageGuidanceLoss()(embeddings, names).backward()
    """

    shown = ("direction", "shift", "temperature")

    def __init__(
        self,
        direction: Literal["forward", "backward"] = "forward",
        shift: float | None = None,
        temperature: float = 1.0,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        check_choice(("forward", "backward"), direction=direction)
        check_positive(temperature=temperature)
        if shift is not None:
            check_finite_numbers(shift=shift)
        check_choice(REDUCTIONS, reduction=reduction)
        self.direction, self.shift, self.temperature = direction, shift, temperature
        self.reduction = reduction

    def forward(
        self,
        embeddings: Tensor,
        text_embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Loss of a batch, () or (B,), float32 or float64; 0 for an empty batch.

        Parameters
        ----------
        embeddings, text_embeddings : Tensor
            (B, D), and (B, k, d) of the k texts of each sample, constants; floating point, any scale.
        labels : Tensor, optional
            (B,) integers; needed where ``shift`` is given, and unused else.
        sample_weights : Tensor, optional
            (B,), ≥ 0: multiply the samples' losses; differentiable. A sample of weight 0 is absent, also from the rows
            of the others, and the mean divides by the number of the other samples.

        Raises
        ------
        ValueError, TypeError
            Shapes, types or devices that do not fit, k = 0, text embeddings that require a gradient, labels missing
            where they are needed; on the CPU NaN, inf or negative weights.
        """

        def check() -> OwnRows:
            check_matrix("embeddings", embeddings)
            texts = _check_texts(text_embeddings, embeddings)
            dtype = compute_dtype(embeddings, texts)
            rows = own_samples(embeddings, sample_weights, dtype)
            if self.shift is not None and labels is None:
                raise ValueError(f"shift={self.shift} treats equal labels apart: give labels, or shift=None")
            classes = None if self.shift is None else check_labels(labels, embeddings)
            with without_autocast(embeddings.device):
                T = unit_rows(texts.flatten(0, 1).to(dtype))
            # T Tᵀ are the similarities of the texts: the sum of k matrices is one product of k texts in a row.
            T = T.reshape(len(texts), texts.shape[1] * texts.shape[2]) / texts.shape[1] ** 0.5
            return {**rows, "T": T, "labels": classes}

        return self._of_joint_batch(check, self._fused_loss)

    def _fused_loss(
        self, embeddings: Tensor, T: Tensor, labels: Tensor | None, sample_weights: Tensor | None
    ) -> Tensor:
        """The loss of the joint batch: rows of own samples, columns of all."""
        own, shards, weights = self.shards.own_slice(), self.shards, sample_weights
        with without_autocast(embeddings.device):
            X = unit_rows(embeddings.to(T.dtype))
            visual, language = X[own] @ X.t(), T[own] @ T.t()
        if self.shift is not None and labels is not None:
            same = labels[own, None] == labels
            visual = visual.masked_fill(same, 1 + self.shift)
            language = (language + self.shift).masked_fill(same, 1 + self.shift)
        left_out = None
        if weights is not None:
            # The row of an absent sample keeps its own entry: a softmax over nothing would be NaN.
            places = torch.arange(len(X), device=X.device)
            left_out = (weights == 0) & (places[own, None] != places)
            visual, language = (matrix.masked_fill(left_out, -torch.inf) for matrix in (visual, language))
        log_p, log_q = (torch.log_softmax(matrix / self.temperature, dim=1) for matrix in (visual, language))
        first, second = (log_q, log_p) if self.direction == "forward" else (log_p, log_q)
        difference = first - second
        if left_out is not None:
            difference = difference.masked_fill(left_out, 0)  # of −∞ and −∞
        losses = self.temperature**2 * (first.exp() * difference).sum(1)
        if weights is not None:
            losses = losses * weights[own]
        if self.reduction == "none":
            return losses
        total = shards.sum_terms(losses.sum())
        if self.reduction == "sum":
            return total
        return total / (max(1, len(X)) if weights is None else (weights > 0).sum().clamp(min=1))


def _check_texts(texts: object, embeddings: Tensor) -> Tensor:
    texts = check_tensor("text_embeddings", texts)
    if texts.dim() != 3 or not texts.is_floating_point() or len(texts) != len(embeddings):
        raise ValueError(
            f"text_embeddings must be floating point of shape ({len(embeddings)}, k, d), one row for each row of "
            f"embeddings, got {tuple(texts.shape)} of {texts.dtype}"
        )
    if texts.shape[1] == 0 or texts.shape[2] == 0:
        raise ValueError(f"text_embeddings must have k >= 1 texts a sample and d >= 1, got {tuple(texts.shape)}")
    if texts.requires_grad:
        raise ValueError("text_embeddings are constants of this loss: pass text_embeddings.detach()")
    check_same_device(embeddings=embeddings, text_embeddings=texts)
    check_finite_rows(texts, "text_embeddings", "look at the language model that made it")
    return texts
