"""The sweep over the proxies. :func:`anchor_sweep` chooses: a fused forward, lanes, or chunks."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.tracing import without_autocast
from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.lanes import lanes_serve, sweep_fields
from robustdml_ops.engine.proxy_update import ProxyUpdate, selected_rows
from robustdml_ops.engine.similarity_chunks import Similarities, count_selected, gradients_without_samples, slices_of
from robustdml_ops.ops.anchor.backends import (
    EagerAnchor,
    NativeAnchor,
    TritonAnchor,
    fused_forward,
    fused_forward_serves,
    native_chunk,
)
from robustdml_ops.ops.anchor.problem import AnchorBackend, AnchorProblem, AnchorSums, SweepResult, Wanted

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
    result, empty = SweepResult(), len(embeddings) == 0 or C == 0
    if want.lse:
        new = embeddings.new_zeros if empty else embeddings.new_empty  # log(1 + 0)
        result.lse_positive, result.lse_negative = new((2, C), dtype=compute)
    if upstream is not None:
        result.total = embeddings.new_zeros((), dtype=torch.float64)
    if want.biases:
        result.dpositive_bias = torch.zeros_like(problem.positive_bias)
        result.dnegative_bias = torch.zeros_like(problem.negative_bias)
    if empty:
        wanted = (want.embeddings, want.proxies)
        result.dembeddings, result.dproxies = gradients_without_samples(embeddings, proxies, compute, wanted, update)
        return result
    with without_autocast(embeddings.device):
        per_class = problem.sets.per_class
        similarities = Similarities(embeddings, proxies, compute, operand, backend, per_class, selected=selected)
        fused = isinstance(backend, TritonAnchor) and not want.gradients
        if fused and fused_forward_serves(similarities.X, problem):
            lse = fused_forward(similarities.X, proxies, problem)
            if want.lse:
                result.lse_positive, result.lse_negative = lse
            if upstream is not None:
                terms = [(factor * value).sum(dtype=torch.float64) for factor, value in zip(upstream, lse, strict=True)]
                result.total = terms[0] + terms[1]
            return result
        similarities.want_gradients(want.embeddings, want.proxies, update)
        in_place = isinstance(problem.sets, LabelSets) or problem.sets.in_place(compute)
        if isinstance(backend, NativeAnchor) and in_place and lanes_serve(proxies, operand, compute):
            _sweep_by_lanes(similarities, problem, upstream, result)
        else:
            _sweep_by_chunks(similarities, problem, upstream, backend, result, want.gradients)
        result.dembeddings, result.dproxies = similarities.gradients()
    return result


def _sweep_by_chunks(
    similarities: Similarities,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    result: SweepResult,
    gradients: bool,
) -> None:
    """A chunk of proxies at a time: product, epilogue, gradients of the chunk."""
    C = similarities.count
    lse_positive, lse_negative, block = result.lse_positive, result.lse_negative, C
    if lse_positive is None or lse_negative is None:
        # Half a megabyte of log-sum-exps at a time, 32 on a GPU: no launch per chunk, and little memory per class.
        most = 1 << 16 if similarities.X.device.type == "cpu" else 1 << 22
        block = min(C, similarities.rows * max(1, most // similarities.rows))
        lse_positive, lse_negative = similarities.X.new_empty((2, block), dtype=similarities.compute)
    biases = (result.dpositive_bias, result.dnegative_bias)
    for chunk in similarities:
        place = chunk.first % block
        end = place + len(chunk.S)
        factors = None
        if gradients and upstream is not None:
            factors = slices_of(upstream, chunk.first, chunk.last)
        sums = AnchorSums(factors, lse_positive[place:end], lse_negative[place:end], *biases)
        backend.anchor_lse(chunk, sums, problem)
        if upstream is not None and result.total is not None and (chunk.last == C or end == block):
            summed = slices_of(upstream, chunk.first - place, chunk.last)
            for factor, value in zip(summed, (lse_positive[:end], lse_negative[:end]), strict=True):
                result.total += (factor * value).sum(dtype=torch.float64)
        similarities.backward(chunk)


def _sweep_by_lanes(
    similarities: Similarities, problem: AnchorProblem, upstream: tuple[Tensor, Tensor] | None, result: SweepResult
) -> None:
    """One call of the native module: each thread of the CPU takes chunks of proxies on its own."""
    compute, sets = similarities.compute, problem.sets
    lse, biases = (result.lse_positive, result.lse_negative), (result.dpositive_bias, result.dnegative_bias)
    sums = AnchorSums(upstream, *lse, *biases)
    whole = native_chunk(problem, 0, similarities.count, sums, problem.needs_row_max)
    given: dict[str, Any]
    if isinstance(sets, LabelSets):
        sorted_labels, order = sets.by_class()
        name, given = "labels", {"sorted_labels": sorted_labels, "order": order, "first_label": 0}
    else:
        name, given = "confidences", sets.arguments(compute)
    function = getattr(module.library, f"anchor_sweep_{name}_{module.SUFFIX[compute]}")
    fields = {**sweep_fields(similarities, sets.per_class), "total": module.address(result.total)}
    if function(whole, **module.addresses(given), **fields):
        similarities.check_proxy_gradients()
