"""A step of Proxy-Anchor without options on the CPU: one native call, from the embeddings to both gradients.

Of a small step the products take a fifth of the time; the layers of the general way take most of the rest.
"""

from typing import Any

import torch
from torch import Tensor, nn

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import apply_function, choose, in_eager_mode
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.rows.backends import gradient_buffer
from robustdml_ops.engine.validation import is_number
from robustdml_ops.ops.anchor.autograd import AnchorSweep
from robustdml_ops.ops.anchor.backends import NativeAnchor
from robustdml_ops.ops.anchor.sweep import BACKENDS


class AnchorStep(torch.autograd.Function):
    """A loss whose gradients have been computed with it."""

    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, proxies: Tensor, labels: Tensor, alpha: float, bias: float, results: list[Tensor]
    ) -> Tensor:
        """The first of ``results``: loss, dL/dembeddings and dL/dproxies."""
        ctx.save_for_backward(embeddings, proxies, labels)
        ctx.exponents = alpha, bias
        loss, *ctx.gradients = results
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients, once; a second backward, and one that is differentiated, take the general way."""
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None or torch.is_grad_enabled():
            X, P, labels = ctx.saved_tensors
            twice = torch.is_grad_enabled()
            with torch.enable_grad():
                loss = _by_general_way(X, P, labels, *ctx.exponents)
            gradients = torch.autograd.grad(loss, (X, P), dloss, create_graph=twice)
        elif dloss.item() != 1:
            for gradient in gradients:
                gradient.mul_(dloss)
        return (*gradients, None, None, None, None)


def anchor_step(
    embeddings: Any, proxies: Tensor, labels: Any, alpha: float, bias: float, backend: str | None
) -> Tensor | None:
    """The loss, (); None where these arguments need the general way, or an error, which that way has."""
    if not _serves(embeddings, proxies, labels) or not is_number(alpha) or not is_number(bias):
        return None
    X, P, dtype = embeddings, proxies, embeddings.dtype
    steep = alpha * torch.finfo(dtype).eps
    if not 0 < steep <= 1 or not in_eager_mode(X):
        return None
    if not isinstance(choose(BACKENDS, backend, X.device, dtype), NativeAnchor):
        return None
    (B, D), C, threads = X.shape, P.shape[0], torch.get_num_threads()
    rows = min(C, module.lane_rows(C, (B + 2 * D) * X.itemsize, threads))
    results = [X.new_empty(()), torch.empty_like(X), gradient_buffer(P)]
    loss, dX, dP = (tensor.data_ptr() for tensor in results)
    call = getattr(module.library, f"anchor_step_{module.SUFFIX[dtype]}")
    places = (X.data_ptr(), labels.data_ptr(), P.data_ptr())
    product = module.matrix_product(dtype), module.set_threads()
    if not call(*product, *places, B, C, D, alpha, bias, rows, threads, dX, dP, loss):
        return None
    del dX, dP
    found: Tensor = apply_function(AnchorStep, X, P, labels, alpha, bias, results)
    return found


def _serves(X: Any, P: Tensor, labels: Any) -> bool:
    """Whether the native call reads the tensors as they are, and both matrices want a gradient."""
    if type(X) is not Tensor or type(labels) is not Tensor or type(P) is not nn.Parameter:
        return False
    dtype = X.dtype
    if X.is_nested or X.layout is not torch.strided or dtype != P.dtype or labels.dtype != torch.int64:
        return False
    if X.dim() != 2 or labels.shape != X.shape[:1] or X.shape[1:] != P.shape[1:] or not X.numel() or not P.numel():
        return False
    if not all(tensor.is_cpu and tensor.is_contiguous() for tensor in (X, P, labels)):
        return False
    if not X.requires_grad or not P.requires_grad or not torch.is_grad_enabled():
        return False
    return not torch.is_autocast_enabled("cpu") and module.matrix_product(dtype) != 0


def _by_general_way(X: Tensor, P: Tensor, labels: Tensor, alpha: float, bias: float) -> Tensor:
    sets = LabelSets.of(labels)
    scales = [X.new_full((), 1 / float(count)) for count in (sets.count(None, X.dtype), len(P))]
    tensors = X, P, X.new_full((len(X),), bias), None, None, *scales, None
    loss: Tensor
    loss, *_ = apply_function(AnchorSweep, *tensors, alpha, "native", X.dtype, [False, True, True, False], None, sets)
    return loss
