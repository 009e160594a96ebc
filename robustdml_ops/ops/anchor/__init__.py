"""The anchor log-sum-exp: per anchor, over the candidates of its positive and of its negative set.

    positive_p = log(1 + Σ_{x∈X_p⁺} w_xp exp(−α s(x,p) + positive_bias_x))
    negative_p = log(1 + Σ_{x∈X_p⁻} w_xp exp(+α s(x,p) + negative_bias_x + anchor_bias_p))

The negatives may be restricted to s(x,p) ≤ t_x by ``drop_similar_negatives`` t.
:func:`anchor_lse` returns both vectors, for any use; :func:`anchor_loss` a weighted sum of them, for which value and
gradients take one sweep over the proxies.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.backends.dispatch import apply_function, compute_dtype, in_eager_mode, operand_dtype
from robustdml_ops.engine.labels import LabelSets, check_distinct
from robustdml_ops.engine.op_arguments import flatten
from robustdml_ops.engine.proxy_update import ProxyUpdate, refuse_update
from robustdml_ops.engine.similarity_chunks import checked_count
from robustdml_ops.engine.validation import (
    check_matrix,
    check_same_device,
    check_steepness,
    check_tensor,
    check_vector,
    similarity_limits,
)
from robustdml_ops.ops.anchor.backends import AnchorOptions, ConfidenceSets
from robustdml_ops.ops.anchor.sweep import AnchorSweep, Inputs, Outputs


class AnchorLSE(NamedTuple):
    """Log-sum-exps of all anchors, (C,) each."""

    positive: Tensor
    negative: Tensor


class AnchorBiases(NamedTuple):
    """Terms added to the exponents: α·margin, and the logarithm of a sample's weight (−inf: the sample is absent)."""

    positive: Tensor  # (B,)
    negative: Tensor  # (B,)
    anchor: Tensor | None = None  # (C,), to the negative exponent


def anchor_lse(
    embeddings: Tensor,
    proxies: Tensor,
    sets: LabelSets | ConfidenceSets,
    biases: AnchorBiases,
    *,
    alpha: float,
    drop_similar_negatives: float | Tensor | None = None,
    backend: str | None = None,
) -> AnchorLSE:
    """Both log-sum-exps of every anchor; differentiable for any upstream gradient.

    Backward computes the similarities again: nothing of size B×C is saved.

    Parameters
    ----------
    embeddings, proxies : Tensor
        (B, D) and (C, D), float64, float32, bfloat16 or float16, any scale: s is their cosine. A zero row has cosine 0
        with everything and zero gradient.
    sets : LabelSets or ConfidenceSets
        Which candidates are in X_p⁺; the others are in X_p⁻. With labels (B, K), ``robustdml_ops.ops.ELSEWHERE`` where
        a candidate has fewer, it is in X_p⁺ of each, and ``LabelSets.of(labels, weights=w)`` multiplies its
        exponentials there by w (B, K), a constant.
    biases : AnchorBiases
        In the compute type (float64 if either matrix is, else float32); differentiable.
    alpha : float
        Scale of the similarities, > 0 and at most 1/ε: 8·10⁶ in float32, 4·10¹⁵ in float64.
    drop_similar_negatives : float or Tensor, optional
        In (−1, 1], or one limit for each candidate, (B,), of any size: candidates of X_p⁻ whose cosine exceeds it are
        left out of the sum; those of X_p⁺ never are. Which are left out counts as constant in the gradients. None: all
        stay.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    AnchorLSE
        positive, negative: (C,) each, in the compute type; exactly 0 for an empty set.

    Raises
    ------
    ValueError
        Shapes or types that do not fit; on the CPU also NaN or inf, and in backward a row so short that its gradient
        overflows (on a GPU the result is NaN or inf: a check would stall it).
    IndexError
        On the CPU, a label outside 0 … C − 1 (on a GPU a device-side assertion).

    Notes
    -----
    Source: the two sums of Kim et al. 2020, Eq. 4; Roig et al. 2020, Eq. 5; Phan et al., Eq. 2. On a GPU half-precision
    embeddings, and all under autocast, enter the products as bfloat16, and the proxies with them.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_lse
    >>> X, P = torch.eye(2), torch.eye(2)
    >>> bias = torch.zeros(2)
    >>> lse = anchor_lse(X, P, LabelSets.of(torch.tensor([0, 1])), AnchorBiases(bias, bias), alpha=1.0)
    >>> lse.positive  # log(1 + e^-1): each class has its one sample at cosine 1
    tensor([0.3133, 0.3133])
    """
    inputs, _ = _check(embeddings, proxies, sets, biases, alpha)
    options = AnchorOptions(alpha, sets, similarity_limits(drop_similar_negatives, embeddings, inputs[2].dtype))
    want = [True, False, False, False]
    _, positive, negative, *_ = _apply(inputs, (None, None), options, backend, want)
    assert positive is not None and negative is not None
    return AnchorLSE(positive, negative)


def anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    sets: LabelSets | ConfidenceSets,
    biases: AnchorBiases,
    positive_scale: Tensor,
    negative_scale: Tensor,
    *,
    alpha: float,
    drop_similar_negatives: float | Tensor | None = None,
    backend: str | None = None,
    update: ProxyUpdate | None = None,
) -> Tensor:
    """positive_scale·Σ_p positive_p + negative_scale·Σ_p negative_p, with all gradients, in one sweep.

    A chunk of classes is differentiated before it leaves the cache: 6·B·C·D flops for the value and both gradients,
    where :func:`anchor_lse` takes 8.

    Parameters
    ----------
    embeddings, proxies, sets, biases, alpha, drop_similar_negatives, backend
        As in :func:`anchor_lse`.
    positive_scale, negative_scale : Tensor
        () or (C,) each, in the compute type, on the device of the embeddings. No gradient.
    update : ProxyUpdate, optional
        The step of an optimiser of :mod:`robustdml_ops.optim`, taken in this sweep; the proxies get no gradient. Eager
        mode only. With an update of some rows the sweep is over these: sets, scales and anchor bias count among them.

    Returns
    -------
    Tensor
        (), in the compute type. Without samples: 0, with zero gradients.

    Raises
    ------
    ValueError, IndexError
        As :func:`anchor_lse`.
    RuntimeError
        An update that is not possible here, such as a second one before the optimiser's ``step()``.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_loss
    >>> X, P, bias = torch.eye(2), torch.eye(2), torch.zeros(2)
    >>> half = torch.tensor(0.5)
    >>> anchor_loss(X, P, LabelSets.of(torch.tensor([0, 1])), AnchorBiases(bias, bias), half, half, alpha=1.0)
    tensor(1.0064)
    """
    inputs, C = _check(embeddings, proxies, sets, biases, alpha, update)
    dtype = inputs[2].dtype
    for name, scale in (("positive_scale", positive_scale), ("negative_scale", negative_scale)):
        check_tensor(name, scale)
        if scale.shape not in ((), (C,)) or scale.dtype != dtype:
            raise ValueError(
                f"{name} must be of shape () or ({C},) and of the compute type {dtype}, got {tuple(scale.shape)} of "
                f"{scale.dtype}"
            )
        check_same_device(embeddings=embeddings, **{name: scale})
    options = AnchorOptions(alpha, sets, similarity_limits(drop_similar_negatives, embeddings, dtype))
    scales = (positive_scale.contiguous(), negative_scale.contiguous())  # kernels read them by address
    needs = [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in inputs]
    want = [needs[4], needs[0], needs[1], needs[2] or needs[3]]
    if update is not None and not in_eager_mode(embeddings):
        refuse_update(update, "torch.func, or a graph without values,", "compute the loss in eager mode")
    loss, *_ = _apply(inputs, scales, options, backend, want, update)
    assert loss is not None
    return loss


def _apply(
    inputs: Inputs,
    scales: tuple[Tensor | None, Tensor | None],
    options: AnchorOptions,
    backend: str | None,
    want: list[bool],
    update: ProxyUpdate | None = None,
) -> Outputs:
    operand = operand_dtype(inputs[2].dtype, inputs[0], autocast=True, lanes=True)
    parts: tuple[Any, ...] = (options,)
    if not in_eager_mode(inputs[0]):
        names, numbers, tensors = flatten(options)
        parts = (names, numbers, *tensors)
    outputs: Outputs = apply_function(AnchorSweep, *inputs, *scales, backend or "auto", operand, want, update, *parts)
    return outputs


def _check(
    embeddings: Tensor,
    proxies: Tensor,
    sets: LabelSets | ConfidenceSets,
    biases: AnchorBiases,
    alpha: float,
    update: ProxyUpdate | None = None,
) -> tuple[Inputs, int]:
    """Checked inputs, and the number of proxies in the sweep, which checks the values."""
    check_matrix("embeddings", embeddings)
    check_matrix("proxies", proxies, columns=embeddings.shape[1])
    if not isinstance(sets, (LabelSets, ConfidenceSets)):
        raise TypeError(f"sets must be LabelSets or ConfidenceSets, got {type(sets).__name__}: LabelSets.of(labels)")
    if not isinstance(biases, AnchorBiases):
        raise TypeError(f"biases must be AnchorBiases, got {type(biases).__name__}: AnchorBiases(positive, negative)")
    dtype = compute_dtype(embeddings, proxies)
    check_steepness(dtype, alpha=alpha)
    B, C = len(embeddings), checked_count(proxies, update)
    named = (("positive", biases.positive, B), ("negative", biases.negative, B), ("anchor", biases.anchor, C))
    for name, bias, length in named:
        if bias is not None and check_vector(f"biases.{name}", bias, length).dtype != dtype:
            raise ValueError(f"biases.{name} must be of the compute type {dtype}, got {bias.dtype}")
    check_same_device(embeddings=embeddings, proxies=proxies, bias=biases.positive, sets=sets.tensors[0])
    weights = sets.weights if isinstance(sets, LabelSets) else None
    if isinstance(sets, LabelSets) and sets.labels.dim() == 2 and not sets.elsewhere:
        check_distinct(sets.labels)
    if weights is not None and (weights.shape != sets.tensors[0].shape or weights.dtype != dtype):
        raise ValueError(
            f"weights of sets must have the shape {tuple(sets.tensors[0].shape)} of the labels and the compute type "
            f"{dtype}, got {tuple(weights.shape)} of {weights.dtype}"
        )
    if weights is not None and weights.requires_grad:
        raise ValueError("weights of sets require a gradient, and are constants of this op: pass weights.detach()")
    # Kernels read the biases by address.
    positive, anchor = biases.positive.contiguous(), biases.anchor
    # One tensor twice among its arguments is more than a compiled function takes.
    negative = None if biases.negative is biases.positive else biases.negative.contiguous()
    return (embeddings, proxies, positive, negative, None if anchor is None else anchor.contiguous()), C
