"""Softmax and logistic losses of every anchor over its candidates, see :class:`PairContrastProblem`.

InfoNCE of two matrices whose rows belong together takes 6 to 8·n·m·D flops for both sides, where two sweeps take 12.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from robustdml_ops.ops.pairs.autograd import pair_dtype
from robustdml_ops.ops.pairs.checks import check_pairs, pair_sums
from robustdml_ops.ops.pairs.problem import PairContrastProblem


class PairContrast(NamedTuple):
    """Losses and log-sum-exps of all anchors; with scales the weighted sum of the losses instead. The rest is None."""

    total: Tensor  # ()
    loss: Tensor  # (n,)
    lse: Tensor  # (n,)
    above: Tensor  # () int64: losses above 0


def pair_contrast(
    embeddings: Tensor,
    labels: Tensor,
    candidates: Tensor | None = None,
    candidate_labels: Tensor | None = None,
    scale: Tensor | None = None,
    *,
    coefficients: Tensor,
    form: str,
    anchors_first: bool = False,
    backend: str | None = None,
) -> PairContrast:
    """Losses and log-sum-exps, differentiable for any upstream gradient: backward makes the similarities again.

    With constant scales, () or (n,): Σ_a scale_a · loss_a with all gradients, in one sweep of 6·n·m·D flops.
    """
    sets = check_pairs(embeddings, labels, candidates, candidate_labels, anchors_first)
    problem = PairContrastProblem(sets, coefficients, form)
    scales = None if scale is None else (scale, scale.new_zeros(()))
    return PairContrast(*pair_sums(embeddings, candidates, problem, backend, scales, coefficients))


def coefficients_of(
    embeddings: Tensor, candidates: Tensor | None, scale: float | Tensor, bias: float | Tensor = 0.0
) -> Tensor:
    """Scale and bias of the logits, (2,) in the compute type; differentiable in tensors ()."""
    dtype = pair_dtype(embeddings, candidates)
    both = (one if isinstance(one, Tensor) else embeddings.new_full((), one, dtype=dtype) for one in (scale, bias))
    return torch.stack([one.to(embeddings.device, dtype) for one in both])
