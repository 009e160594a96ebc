"""The plan of a Proxy-Anchor step on the CPU: one native call."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import apply_function, choose
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.plan import Plan, Results, native_weights_serve
from robustdml_ops.engine.rows.backends import gradient_buffer
from robustdml_ops.engine.validation import is_number
from robustdml_ops.ops.anchor.backends import AnchorOptions, NativeAnchor
from robustdml_ops.ops.anchor.sweep import BACKENDS, AnchorSweep


def log_weights(bias: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Biases (B,) plus log weights, and which samples are present (None: all)."""
    if weights is None:
        return bias, None
    weights = weights.to(bias.dtype)
    present = weights > 0
    return (bias + weights.masked_fill(~present, 1).log()).masked_fill(~present, -torch.inf), present


@dataclass(frozen=True)
class AnchorPlan(Plan):
    """A step on the CPU by lanes. Tensors: embeddings, proxies, labels; at places 5, 6 weights and margins or None."""

    alpha: float
    bias: float  # α · margin, where margins are not learnt
    regularization: float  # λ of λ/mean(margins), where they are
    chunk_rows: int
    threads: int
    dtype: torch.dtype

    def run(self, *tensors: Any) -> Results | None:
        """One native call; None for a label out of range, NaN, a weight below 0, or rows of extreme length."""
        X, P, labels, _, _, weights, margins = tensors[:7]
        loss, dX, dP, dmargins = X.new_empty(()), None, None, None
        if self.wanted[0]:
            dX = torch.empty_like(X)
        if self.wanted[1]:
            dP = gradient_buffer(P)
        if self.wanted[6:]:
            dmargins = torch.empty_like(margins)
        if weights is not None:
            weights = weights.to(self.dtype).contiguous()
        served = getattr(module.library, f"anchor_step_{module.SUFFIX[self.dtype]}")(
            module.matrix_product(self.dtype),
            module.set_threads(),
            X.data_ptr(),
            labels.data_ptr(),
            0 if weights is None else weights.data_ptr(),
            P.data_ptr(),
            *X.shape,
            len(P),
            self.alpha,
            self.bias,
            0 if margins is None else margins.data_ptr(),
            0 if margins is None else len(margins),
            self.regularization,
            self.chunk_rows,
            self.threads,
            0 if dX is None else dX.data_ptr(),
            0 if dP is None else dP.data_ptr(),
            0 if dmargins is None else dmargins.data_ptr(),
            loss.data_ptr(),
        )
        if not served:
            return None
        return loss, [dX, dP] if dmargins is None else [dX, dP, None, None, None, None, dmargins]

    def general(self, *tensors: Any) -> Tensor:
        """The loss by the sweep that is differentiable twice."""
        X, P, labels, _, _, weights, margins = tensors[:7]
        sets, bias = LabelSets.of(labels), X.new_full((len(X),), self.bias)
        if margins is not None:
            bias = self.alpha * (margins[labels] if len(margins) > 1 else margins.expand(len(X)))
        bias, present = log_weights(bias, weights)
        scales = [X.new_full((), 1 / float(count)) for count in (sets.count(present, X.dtype), len(P))]
        want = [False, True, True, margins is not None]
        settings = ("native", X.dtype, want, None, AnchorOptions(self.alpha, sets))
        loss: Tensor
        loss, *_ = apply_function(AnchorSweep, X, P, bias, None, None, *scales, *settings)
        return loss if margins is None else loss + self.regularization / margins.mean()


def anchor_plan(
    X: Any,
    P: Any,
    labels: Any,
    weights: Any,
    alpha: Any,
    bias: Any,
    backend: str | None,
    margins: Any = None,
    regularization: Any = 0.0,
) -> Plan | None:
    """The plan of these tensors; None where the native call does not read them as they are, or settings are wrong."""
    if not is_number(alpha) or not is_number(bias) or not is_number(regularization):
        return None
    if margins is not None and (margins.dtype != X.dtype or margins.shape not in ((1,), P.shape[:1])):
        return None
    dtype = X.dtype
    if not X.is_cpu or module.matrix_product(dtype) == 0 or not 0 < alpha * torch.finfo(dtype).eps <= 1:
        return None
    if not native_weights_serve(weights, X):
        return None
    if X.dim() != 2 or labels.shape != X.shape[:1] or X.shape[1:] != P.shape[1:] or not X.numel() or not P.numel():
        return None
    same = dtype == P.dtype and labels.dtype == torch.int64
    given = (X, P, labels) if margins is None else (X, P, labels, margins)
    if not same or not all(tensor.is_cpu and tensor.is_contiguous() for tensor in given):
        return None
    if torch.is_autocast_enabled("cpu") or not isinstance(choose(BACKENDS, backend, X.device, dtype), NativeAnchor):
        return None
    (B, D), C, threads = X.shape, P.shape[0], torch.get_num_threads()
    rows = min(C, module.lane_rows(C, (B + 2 * D) * X.itemsize, threads))
    graded = torch.is_grad_enabled()
    wanted: tuple[bool, ...] = (graded and X.requires_grad, graded and P.requires_grad)
    if margins is not None and graded and margins.requires_grad:
        wanted = (*wanted, False, False, False, False, True)  # margins are at place 6
    return AnchorPlan(wanted, float(alpha), float(bias), float(regularization), rows, threads, dtype)
