"""The second derivative of the anchor sweep, a differentiable chunk of classes at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.engine.chunk_sizes import cache_rows
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.precision import compute_dtype
from robustdml_ops.engine.rows.lengths import unit_rows_twice
from robustdml_ops.engine.second_derivatives import Results, second_derivatives
from robustdml_ops.ops.anchor.backends import membership
from robustdml_ops.ops.anchor.problem import ConfidenceSets, sets_of


def second_derivative(alpha: float, parts_of_sets: Sequence[Any], *tensors: Any) -> Results:
    """Derivatives of ⟨gradients of the sweep, vectors⟩ with respect to its five inputs and both upstream gradients."""
    # Tensors: inputs, upstream gradients, limits, those of the sets, and a vector for each input, or None.
    X, P, positive_bias, negative_bias, anchor_bias, *upstream, drop_above = tensors[:8]
    vX, vP, v_positive, v_negative, v_anchor = tensors[-5:]
    sets = sets_of((*parts_of_sets, *tensors[8:-5]))
    dX, dpositive, dnegative, dP, danchor, *dupstream = second_derivatives(
        partial(_chunk_value, sets, alpha, drop_above),
        (X, positive_bias, negative_bias, P, anchor_bias, *upstream),
        (vX, v_positive, v_negative, vP, v_anchor, None, None),
        (False, False, False, True, True, *(factor.dim() == 1 for factor in upstream)),
        cache_rows(len(X) + 2 * X.shape[1], X.device),
        len(P),
    )
    return (dX, dP, dpositive, dnegative, danchor, *dupstream)


def _chunk_value(
    sets: LabelSets | ConfidenceSets, alpha: float, drop_above: Tensor | None, first: int, last: int, *tensors: Any
) -> Tensor:
    """Σ_p upstream_p · lse_p of the classes ``first:last`` in differentiable PyTorch."""
    X, positive_bias, negative_bias, P, anchor_bias, upstream_positive, upstream_negative = tensors
    dtype = compute_dtype(X, P)
    cosine = unit_rows_twice(P.to(dtype)) @ unit_rows_twice(X.to(dtype)).t()
    scaled = alpha * cosine
    positive, log_weight = membership(sets, first, last, scaled)
    negative_exponent = (positive_bias if negative_bias is None else negative_bias) + scaled + log_weight
    if anchor_bias is not None:
        negative_exponent = negative_exponent + anchor_bias[:, None]
    lse_positive = _log_one_plus_sum((positive_bias - scaled + log_weight).masked_fill(~positive, -torch.inf))
    left_out = positive if drop_above is None else positive | (cosine > drop_above)
    lse_negative = _log_one_plus_sum(negative_exponent.masked_fill(left_out, -torch.inf))
    value: Tensor = (upstream_positive * lse_positive + upstream_negative * lse_negative).sum()
    return value


def _log_one_plus_sum(exponent: Tensor) -> Tensor:
    return torch.logsumexp(torch.nn.functional.pad(exponent, (1, 0)), dim=1)
