"""The sweep over the proxies, in one of four ways: each is a file of its own, and :func:`anchor_sweep` chooses."""

import torch
from torch import Tensor

from robustdml_ops.backends.tracing import without_autocast
from robustdml_ops.engine.gradient_memory import gradient_buffer
from robustdml_ops.engine.proxy_update import ProxyUpdate, selected_rows
from robustdml_ops.engine.similarity_chunks import Similarities, count_selected, update_without_samples
from robustdml_ops.ops.anchor.eager import EagerAnchor
from robustdml_ops.ops.anchor.fused_forward import fused_forward, fused_forward_serves
from robustdml_ops.ops.anchor.native import NativeAnchor
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorProblem, SweepResult, Wanted
from robustdml_ops.ops.anchor.small_step import small_step, small_step_serves
from robustdml_ops.ops.anchor.sweep_by_chunks import sweep_by_chunks
from robustdml_ops.ops.anchor.sweep_by_lanes import anchor_lanes_serve, sweep_by_lanes
from robustdml_ops.ops.anchor.triton import TritonAnchor

BACKENDS: dict[str, AnchorBackend] = {"native": NativeAnchor(), "triton": TritonAnchor(), "eager": EagerAnchor()}


def anchor_sweep(
    embeddings: Tensor,
    proxies: Tensor,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    operand: torch.dtype,
    want: Wanted,
    update: ProxyUpdate | None = None,
) -> SweepResult:
    """Log-sum-exps of every anchor, their weighted sum and its gradients: 6·B·C·D flops with both gradients."""
    selected = selected_rows(update)
    compute, C = problem.positive_bias.dtype, count_selected(proxies, selected)
    if len(embeddings) == 0 or C == 0:
        return _without_sums(embeddings, proxies, problem, upstream, want, update)
    with without_autocast(embeddings.device):
        similarities = Similarities(
            embeddings, proxies, compute, operand, backend, problem.sets.per_class, selected=selected
        )
        on_triton = isinstance(backend, TritonAnchor)
        if on_triton and not want.gradients and fused_forward_serves(similarities.X, problem):
            return _of_log_sum_exps(fused_forward(similarities.X, proxies, problem), upstream, want)

        similarities.want_gradients(want.embeddings, want.proxies, update)
        result = _buffers(embeddings, problem, upstream, want, C)
        if isinstance(backend, NativeAnchor) and anchor_lanes_serve(proxies, problem.sets, operand, compute):
            sweep_by_lanes(similarities, problem, upstream, result)
        elif on_triton and upstream is not None and small_step_serves(similarities, problem, result):
            small_step(similarities, problem, upstream, result)
        else:
            sweep_by_chunks(similarities, problem, upstream, backend, result, want.gradients)
        result.dembeddings, result.dproxies = similarities.gradients()
    return result


def _buffers(
    embeddings: Tensor, problem: AnchorProblem, upstream: tuple[Tensor, Tensor] | None, want: Wanted, C: int
) -> SweepResult:
    """A result whose wanted tensors are allocated, but for the gradients of both matrices."""
    result = SweepResult()
    if want.lse:
        result.lse_positive, result.lse_negative = embeddings.new_empty((2, C), dtype=problem.positive_bias.dtype)
    if upstream is not None:
        result.total = embeddings.new_zeros((), dtype=torch.float64)
    if want.biases:
        result.dpositive_bias = torch.zeros_like(problem.positive_bias)
        result.dnegative_bias = torch.zeros_like(problem.negative_bias)
    return result


def _of_log_sum_exps(lse: tuple[Tensor, Tensor], upstream: tuple[Tensor, Tensor] | None, want: Wanted) -> SweepResult:
    """The result of a fused forward, which gives all log-sum-exps at once."""
    result = SweepResult()
    if want.lse:
        result.lse_positive, result.lse_negative = lse
    if upstream is not None:
        terms = [(factor * value).sum(dtype=torch.float64) for factor, value in zip(upstream, lse, strict=True)]
        result.total = terms[0] + terms[1]
    return result


def _without_sums(
    embeddings: Tensor,
    proxies: Tensor,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    want: Wanted,
    update: ProxyUpdate | None,
) -> SweepResult:
    """The result without samples or without proxies: every sum is log(1 + 0), every gradient 0."""
    if update is not None and want.proxies:
        update_without_samples(proxies, update)
    C = count_selected(proxies, selected_rows(update))
    zeros = torch.zeros(C, dtype=problem.positive_bias.dtype, device=embeddings.device)
    return SweepResult(
        total=None if upstream is None else zeros.new_zeros((), dtype=torch.float64),
        lse_positive=zeros if want.lse else None,
        lse_negative=zeros.clone() if want.lse else None,
        dembeddings=torch.zeros_like(embeddings, dtype=zeros.dtype) if want.embeddings else None,
        dproxies=gradient_buffer(proxies).zero_() if want.proxies and update is None else None,
        dpositive_bias=torch.zeros_like(problem.positive_bias) if want.biases else None,
        dnegative_bias=torch.zeros_like(problem.negative_bias) if want.biases else None,
    )
