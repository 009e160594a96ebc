"""The sweep over the proxies. :func:`anchor_sweep` chooses lanes or chunks."""

from typing import Any

import torch
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.backends.dispatch import without_autocast
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.proxy_update import ProxyUpdate
from robustdml_ops.engine.similarity_chunks import (
    Similarities,
    Swept,
    count_selected,
    gradients_without_samples,
    slices_of,
)
from robustdml_ops.ops.anchor.backends import EagerAnchor, NativeAnchor, TritonAnchor
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
    selected = None if update is None else update.rows
    compute, C = problem.positive_bias.dtype, count_selected(proxies, selected)
    result, empty = SweepResult(), len(embeddings) == 0 or C == 0
    lse: Tensor | None = None
    if want.lse:
        new = embeddings.new_zeros if empty else embeddings.new_empty  # log(1 + 0)
        lse = new((2, C), dtype=compute)
        result.lse_positive, result.lse_negative = lse
    if want.biases:
        result.dpositive_bias = torch.zeros_like(problem.positive_bias)
        result.dnegative_bias = torch.zeros_like(problem.negative_bias)
    if empty:
        result.total = None if upstream is None else embeddings.new_zeros((), dtype=torch.float64)
        wanted = (want.embeddings, want.proxies)
        result.dembeddings, result.dproxies = gradients_without_samples(embeddings, proxies, compute, wanted, update)
        return result
    with without_autocast(embeddings.device):
        swept = Swept(proxies, selected=selected, per_row=problem.sets.per_class)
        similarities = Similarities(embeddings, swept, compute, operand, backend)
        similarities.want_gradients(want.embeddings, want.proxies, update)
        in_place = isinstance(problem.sets, LabelSets) or problem.sets.in_place(compute)
        if (
            isinstance(backend, NativeAnchor)
            and in_place
            and module.lanes_serve(proxies, similarities.X.dtype, compute)
        ):
            _sweep_by_lanes(similarities, problem, upstream, result)
        else:
            _sweep_by_chunks(similarities, problem, upstream, backend, result, want.gradients, lse)
        result.dembeddings, result.dproxies = similarities.gradients()
    return result


def _sweep_by_chunks(
    similarities: Similarities,
    problem: AnchorProblem,
    upstream: tuple[Tensor, Tensor] | None,
    backend: AnchorBackend,
    result: SweepResult,
    gradients: bool,
    lse: Tensor | None,
) -> None:
    """A chunk of proxies at a time: product, epilogue, gradients of the chunk."""
    C = block = similarities.count
    if lse is None:
        # Half a megabyte of log-sum-exps at a time, 32 on a GPU: no launch per chunk, and little memory per class.
        most = 1 << 16 if similarities.X.device.type == "cpu" else 1 << 22
        block = min(C, similarities.rows * max(1, most // similarities.rows))
        lse = similarities.X.new_empty((2, block), dtype=similarities.compute)
    biases = (result.dpositive_bias, result.dnegative_bias)
    for chunk in similarities:
        place = chunk.first % block
        end = place + len(chunk.S)
        factors = None
        if gradients and upstream is not None:
            factors = slices_of(upstream, chunk.first, chunk.last)
        lse_positive, lse_negative = lse[:, place:end]
        sums = AnchorSums(factors, lse_positive, lse_negative, *biases)
        backend.anchor_lse(chunk, sums, problem)
        if upstream is not None and (chunk.last == C or end == block):
            summed = slices_of(upstream, chunk.first - place, chunk.last)
            result.total = _add_weighted(result.total, summed, lse[:, :end])
        similarities.backward(chunk)


def _add_weighted(total: Tensor | None, factors: tuple[Tensor, Tensor], lse: Tensor) -> Tensor | None:
    """Total + Σ factor · lse in float64, over both log-sum-exps (2, c)."""
    shared = all(factor.dim() == 0 for factor in factors)
    sums = lse.sum(1, dtype=torch.float64) if shared else lse
    for factor, value in zip(factors, sums, strict=True):
        if not shared:
            term = (factor * value).sum(dtype=torch.float64)
            total = term if total is None else total + term
        else:
            total = factor * value if total is None else total.addcmul_(factor, value)
    return total


def _sweep_by_lanes(
    similarities: Similarities, problem: AnchorProblem, upstream: tuple[Tensor, Tensor] | None, result: SweepResult
) -> None:
    """One call of the native module: each thread of the CPU takes chunks of proxies on its own."""
    compute, sets = similarities.compute, problem.sets
    result.total = None if upstream is None else similarities.X.new_zeros((), dtype=torch.float64)
    lse, biases = (result.lse_positive, result.lse_negative), (result.dpositive_bias, result.dnegative_bias)
    sums = AnchorSums(upstream, *lse, *biases)
    whole = problem.native_chunk(0, similarities.count, sums, problem.needs_row_max)
    given: dict[str, Any]
    if isinstance(sets, LabelSets):
        sorted_labels, order = sets.by_class()
        name, given = "labels", {"sorted_labels": sorted_labels, "order": order, "first_label": 0}
    else:
        name, given = "confidences", sets.arguments(compute)
    function = getattr(module.library, f"anchor_sweep_{name}_{module.SUFFIX[compute]}")
    fields = {**similarities.native_fields(), "total": module.address(result.total)}
    if function(whole, **module.addresses(given), **fields):
        similarities.check_proxy_gradients()
