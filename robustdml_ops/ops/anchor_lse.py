"""The anchor log-sum-exp: per anchor, over the candidates of its positive and of its negative set.

    positive_p = log(1 + Σ_{x∈X_p⁺} w_xp exp(−α s(x,p) + positive_bias_x))
    negative_p = log(1 + Σ_{x∈X_p⁻} w_xp exp(+α s(x,p) + negative_bias_x + anchor_bias_p))

:func:`anchor_lse` returns both vectors, for any use; :func:`anchor_loss` a weighted sum of them, for which value and
gradients take one sweep over the proxies.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.dispatch import choose
from robustdml_ops.engine.problem import AnchorProblem, ConfidenceSets, LabelSets
from robustdml_ops.engine.similarities import compute_dtype
from robustdml_ops.engine.sweep import SweepResult, Wanted, anchor_sweep
from robustdml_ops.ops.validation import (
    check_finite_embeddings,
    check_finite_proxies,
    check_label_range,
    check_matrix,
    check_same_device,
    check_vector,
)


class AnchorLSE(NamedTuple):
    """Log-sum-exps of all anchors, (C,) each."""

    positive: Tensor
    negative: Tensor


class AnchorBiases(NamedTuple):
    """What is added to the exponents: α·margin, and the logarithm of a sample's weight (−inf: the sample is absent)."""

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
    backend: str | None = None,
) -> AnchorLSE:
    """Both log-sum-exps of every anchor; differentiable for any upstream gradient.

    Forward is one sweep, backward another that computes the similarities again: nothing of size B×C is kept.

    Parameters
    ----------
    embeddings, proxies : Tensor
        (B, D) and (C, D), float64, float32, bfloat16 or float16, any scale: s is their cosine. A zero row has cosine 0
        with everything and zero gradient.
    sets : LabelSets or ConfidenceSets
        Which candidates are in X_p⁺; the others are in X_p⁻.
    biases : AnchorBiases
        In the compute type (float64 if either matrix is, else float32); differentiable.
    alpha : float
        Scale of the similarities, > 0. Any size: rows are shifted by their maximum where exp would overflow.
    backend : str, optional
        ``"native"``, ``"triton"``, ``"eager"``: that one or an error. None: the fastest that serves the device.

    Returns
    -------
    AnchorLSE
        positive, negative: (C,) each, in the compute type; exactly 0 for an empty set.

    Raises
    ------
    ValueError
        Shapes or types that do not fit; on the CPU also NaN or inf (on a GPU the result is NaN: a look would stall it).
    IndexError
        On the CPU, a label outside 0 … C − 1 (on a GPU a device-side assertion).

    Notes
    -----
    Source: the two sums of Kim et al. 2020, Eq. 4; Roig et al. 2020, Eq. 5; Phan et al., Eq. 2. Similarities and sums
    are in float32 at least; on a GPU bfloat16 and float16 inputs, and all inputs under autocast, enter the products as
    bfloat16.

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
    inputs = _check(embeddings, proxies, sets, biases, alpha)
    if torch.compiler.is_compiling():
        from robustdml_ops.ops.library import anchor_lse_op

        return AnchorLSE(*anchor_lse_op(*inputs, *flatten(sets), alpha, backend or "auto"))
    return AnchorLSE(*_AnchorLSE.apply(*inputs, sets, alpha, backend))  # type: ignore[no-untyped-call]


def anchor_loss(
    embeddings: Tensor,
    proxies: Tensor,
    sets: LabelSets | ConfidenceSets,
    biases: AnchorBiases,
    positive_scale: Tensor,
    negative_scale: Tensor,
    *,
    alpha: float,
    backend: str | None = None,
) -> Tensor:
    """positive_scale·Σ_p positive_p + negative_scale·Σ_p negative_p, with all gradients, in one sweep.

    As the scales are known beforehand, a chunk of classes is differentiated before it leaves the cache: 6·B·C·D flops
    for the value and both gradients, where :func:`anchor_lse` takes 8. The gradients wait for backward, in place of
    everything that autograd would keep.

    Parameters
    ----------
    embeddings, proxies, sets, biases, alpha, backend
        As in :func:`anchor_lse`.
    positive_scale, negative_scale : Tensor
        () each, in the compute type; on the device of the embeddings, so that nothing waits for them. No gradient.

    Returns
    -------
    Tensor
        (), in the compute type. Without samples: 0, with zero gradients.

    Raises
    ------
    ValueError, IndexError
        As :func:`anchor_lse`.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.ops import AnchorBiases, LabelSets, anchor_loss
    >>> X, P, bias = torch.eye(2), torch.eye(2), torch.zeros(2)
    >>> half = torch.tensor(0.5)
    >>> anchor_loss(X, P, LabelSets.of(torch.tensor([0, 1])), AnchorBiases(bias, bias), half, half, alpha=1.0)
    tensor(1.0064)
    """
    inputs = _check(embeddings, proxies, sets, biases, alpha)
    scales = (positive_scale, negative_scale)
    if torch.compiler.is_compiling():
        from robustdml_ops.ops.library import anchor_loss_op

        needs = [tensor is not None and tensor.requires_grad for tensor in inputs]
        compiled: Tensor = anchor_loss_op(*inputs, *scales, *flatten(sets), alpha, backend or "auto", needs)[0]
        return compiled
    want = Wanted.of(inputs) if torch.is_grad_enabled() else Wanted()
    loss: Tensor = _AnchorLoss.apply(*inputs, scales, sets, alpha, backend, want)  # type: ignore[no-untyped-call]
    return loss


def _check(
    embeddings: Tensor, proxies: Tensor, sets: LabelSets | ConfidenceSets, biases: AnchorBiases, alpha: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """What shapes and types tell; values are checked in :func:`run_sweep`, where reading them breaks no graph."""
    check_matrix("embeddings", embeddings)
    check_matrix("proxies", proxies, columns=embeddings.shape[1])
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    dtype = compute_dtype(embeddings, proxies)
    B, C = len(embeddings), len(proxies)
    for name, bias, length in zip(biases._fields, biases, (B, B, C), strict=True):
        if bias is None:
            continue
        check_vector(f"biases.{name}", bias, length)
        if bias.dtype != dtype:
            raise ValueError(f"biases.{name} must be of the compute type {dtype}, got {bias.dtype}")
    check_same_device(
        embeddings=embeddings,
        proxies=proxies,
        bias=biases.positive,
        sets=sets.labels if isinstance(sets, LabelSets) else _first(sets.confidences, sets.hidden),
    )
    # Kernels read the biases by address.
    positive, negative = biases.positive.contiguous(), biases.negative.contiguous()
    return embeddings, proxies, positive, negative, None if biases.anchor is None else biases.anchor.contiguous()


def _first(*tensors: Tensor | None) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor is not None), None)


def flatten(sets: LabelSets | ConfidenceSets) -> tuple[Any, ...]:
    """``sets`` as the registered ops take them: tensors and numbers alone."""
    if isinstance(sets, LabelSets):
        return (sets.labels, None, None, None, None, 0.0, 0.0)
    return (None, sets.confidences, sets.hidden, sets.weight, sets.bias, sets.beta, sets.threshold)


def run_sweep(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    upstream: tuple[Tensor, Tensor] | None,
    sets: LabelSets | ConfidenceSets,
    alpha: float,
    backend: str | None,
    want: Wanted,
) -> SweepResult:
    """One sweep over detached inputs, their values checked."""
    embeddings, proxies, positive_bias, negative_bias, anchor_bias = tensors
    check_finite_embeddings(embeddings)
    if isinstance(sets, LabelSets):
        check_label_range(sets.labels, len(proxies))
    epilogue = choose(backend, embeddings.device, positive_bias.dtype)
    problem = AnchorProblem(alpha, positive_bias, negative_bias, anchor_bias, sets)
    return anchor_sweep(embeddings, proxies, problem, upstream, epilogue, want)


def run_forward(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None],
    upstream: tuple[Tensor, Tensor] | None,
    sets: LabelSets | ConfidenceSets,
    alpha: float,
    backend: str | None,
    want: Wanted,
) -> SweepResult:
    """:func:`run_sweep`, its result checked. Not for backward: there an upstream of inf is a loss scaler's affair."""
    result = run_sweep(tensors, upstream, sets, alpha, backend, want)
    total = result.total
    if total is None:
        assert result.lse_positive is not None and result.lse_negative is not None
        total = result.lse_positive.sum() + result.lse_negative.sum()
    check_finite_proxies(total, tensors[1])
    return result


def anchor_bias_gradient(upstream: Tensor, lse_negative: Tensor) -> Tensor:
    """∂L/∂anchor_bias_p = upstream_p · Σ/(1+Σ), where 1+Σ = exp(negative_p)."""
    return -upstream * torch.expm1(-lse_negative)


class _AnchorLSE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *tensors, sets, alpha, backend = arguments
        result = run_forward(tuple(tensors), None, sets, alpha, backend, Wanted(lse=True))
        assert result.lse_positive is not None and result.lse_negative is not None
        ctx.save_for_backward(*tensors, result.lse_negative)
        ctx.settings = (sets, alpha, backend)
        return result.lse_positive, result.lse_negative

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, positive: Tensor, negative: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, lse_negative = ctx.saved_tensors
        sets, alpha, backend = ctx.settings
        needs = ctx.needs_input_grad
        want = Wanted(embeddings=needs[0], proxies=needs[1], biases=needs[2] or needs[3])
        result = run_sweep(tuple(tensors), (positive, negative), sets, alpha, backend, want)
        anchor = anchor_bias_gradient(negative, lse_negative) if needs[4] else None
        dX = None if result.dembeddings is None else result.dembeddings.to(tensors[0].dtype)
        return (dX, result.dproxies, result.dpositive_bias, result.dnegative_bias, anchor, None, None, None)


class _AnchorLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, scales, sets, alpha, backend, want = arguments
        ctx.save_for_backward(*tensors)
        ctx.settings = (scales, sets, alpha, backend, want)
        result = run_forward(tuple(tensors), *ctx.settings)
        assert result.total is not None
        ctx.result = result if want.gradients or want.lse else None
        return result.total.to(tensors[2].dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        # The gradients are given away and scaled in place, so a second backward of the same graph sweeps again.
        result, ctx.result = ctx.result, None
        if result is None:
            result = run_sweep(ctx.saved_tensors, *ctx.settings)
        scales = ctx.settings[0]
        anchor = None
        if ctx.needs_input_grad[4]:
            anchor = anchor_bias_gradient(scales[1], result.lse_negative) * upstream
        gradients = [result.dembeddings, result.dproxies, result.dpositive_bias, result.dnegative_bias]
        # On the CPU the usual upstream of exactly 1 saves a pass over the proxies; elsewhere asking would stall.
        if upstream.device.type != "cpu" or upstream != 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(upstream)
        if gradients[0] is not None:
            # Only now: unscaled gradients of a float16 model may lie below float16.
            gradients[0] = gradients[0].to(ctx.saved_tensors[0].dtype)
        return (*gradients, anchor, None, None, None, None, None)
