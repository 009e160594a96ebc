"""Steps of each family by robustdml and by others, who get the same problem and pay for all of it.

"softmax" is −log P(label) of unit rows at a scale of 20: PyTorch normalises within the step for those who do not.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from robustdml_ops import ops

from ..families import FAMILIES
from ..pair_workloads import TOWERS, PairShape, PairWorkload
from ..shapes import Shape
from ..workloads import Workload

Step: TypeAlias = Callable[[], list[Tensor]]
ROUNDS, SECONDS = 30, 0.6  # of the timed rounds, at most; three rounds at least
FLUSHED = 1 << 28  # bytes: more than any cache holds
AHEAD, CLOCK = 10, 2e9  # steps that the host launches ahead; cycles a second, at most
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "amp": torch.float32}
SCALE = 20.0
OURS, PML, GRAPH = "robustdml", "pytorch-metric-learning", "robustdml, CUDA graph"
CUTILE, CUTE = "liger_kernel.ops.cutile.ops", "liger_kernel.ops.cutedsl.ops"
LIGER = ("liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy")
LOGITS = 1 << 27  # elements of a slice of logits, by PyTorch alone


def unit(loss: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda X, P, y: loss(F.normalize(X) * SCALE, F.normalize(P), y)


def cross_entropy(X: Tensor, P: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(F.linear(X, P), y, reduction=reduction)


def chunked_cross_entropy(X: Tensor, P: Tensor, y: Tensor) -> Tensor:
    """A slice of the batch at a time, whose logits backward makes again."""
    parts = (rows.split(max(1, LOGITS // len(P))) for rows in (X, y))
    sums = [checkpoint(cross_entropy, x, P, of_x, "sum", use_reentrant=False) for x, of_x in zip(*parts, strict=True)]
    return torch.stack(sums).sum() / len(X)


def imported(module: str, name: str = "linear_cross_entropy", **options: Any) -> Callable[..., Tensor]:
    """A function of a package that may be missing."""
    return unit(lambda X, P, y: getattr(import_module(module), name)(X, P, y, **options))


def applied(module: str, name: str) -> Callable[..., Tensor]:
    """A function of autograd of such a package, whose first result is the loss, or the losses of the samples."""

    def loss(X: Tensor, P: Tensor, y: Tensor) -> Tensor:
        found = getattr(import_module(module), name).apply(X, P, y)
        losses: Tensor = found[0] if isinstance(found, tuple) else found
        return losses.mean()

    return unit(loss)


def siglip_kernel(X: Tensor, V: Tensor) -> Tensor:
    """Both towers of unit rows, a temperature of 1/10 and a bias of −10, which are learnt."""
    settings = [X.new_tensor(value, dtype=torch.float32).requires_grad_() for value in (math.log(10), -10.0)]
    found: Tensor = import_module("siglip_kernel").fused_siglip_loss(F.normalize(X), F.normalize(V), *settings)
    return found


def p_clean(X: Tensor, P: Tensor, y: Tensor) -> list[Tensor]:
    """A filter's pass without gradients."""
    return list(ops.class_lse(X, P, y, scale=SCALE))


def everyone(kind: str) -> dict[str, str | Callable[..., Any]]:
    """All who compute a family of ``bench``, by the name that their rows have."""
    names = {"robustdml": OURS, "pml": PML, "torch": "PyTorch", "compile": "torch.compile"}
    names["linear_cross_entropy"] = "PyTorch, linear_cross_entropy"
    found = {names[name.split("/")[0]]: name for name in FAMILIES[kind].contenders(kind)}
    return found | {GRAPH: f"recorded/{kind}", "torch.compile, reduce-overhead": f"reduce-overhead/{kind}"}


# Names of bench's workloads, or losses of X, P and y.
CONTENDERS: dict[str, dict[str, str | Callable[..., Any]]] = {
    "proxy-anchor": everyone("proxy-anchor"),
    "softmax": {
        **everyone("normalized-softmax"),
        "PyTorch, chunked": unit(chunked_cross_entropy),
        "liger-kernel": imported(*LIGER),
        "liger-kernel, sums in float32": imported(*LIGER, accum_dtype=torch.float32),
        "liger-kernel, larger chunks": imported(*LIGER, chunk_mem_const=256),
        # Of the backends that LIGER_KERNEL_IMPL chooses, and their variants for compute capability 9.0.
        "liger-kernel, cuTile": applied(f"{CUTILE}.fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction"),
        "liger-kernel, CuTe": imported(
            f"{CUTE}.fused_linear_cross_entropy_sm90", "liger_fused_linear_cross_entropy_sm90"
        ),
        "liger-kernel, CuTe, by sample": applied(
            f"{CUTE}.fused_scaled_cross_entropy_sm90", "LigerFusedScaledCrossEntropySM90Function"
        ),
        # By default it leaves out gradients that are small.
        "cut-cross-entropy": imported("cut_cross_entropy"),
        "cut-cross-entropy, filter_eps=None": imported("cut_cross_entropy", filter_eps=None),
        "quack": imported("quack.linear_cross_entropy", "chunked_linear_cross_entropy"),
    },
    "multi-similarity": everyone("ms"),
    "contrastive": everyone("contrastive"),
    "contrastive, collapsed batch": {OURS: "robustdml/contrastive", GRAPH: "recorded/contrastive"},
    "sigmoid": {**everyone("sigmoid"), "siglip-kernel": siglip_kernel},
    "P_clean": {OURS: p_clean},
}
# Products that no way does without, in B·C·D, or in B²·D for a batch with itself.
PRODUCTS = {"proxy-anchor": 6, "softmax": 6, "P_clean": 2}
PRODUCTS |= {"multi-similarity": 4, "contrastive": 4, "contrastive, collapsed batch": 4, "sigmoid": 6}


def step(family: str, who: str, shape: Shape, dtype: str, device: str) -> Step:
    """The contender's step: value and gradients, or values alone where there are none."""
    if who == GRAPH and device != "cuda":
        who = OURS
    given, made = (device, TYPES[dtype], dtype == "amp"), CONTENDERS[family][who]
    if not shape.C:
        towers = family in TOWERS
        pairs = PairWorkload(PairShape(shape.B, shape.D, shape.B if towers else 0), *given)
        pairs.bank = pairs.bank.to(TYPES[dtype])
        if "collapsed" in family:  # all pairs are near
            with torch.no_grad():
                pairs.embeddings.mul_(1e-3).add_(pairs.embeddings[:1] * 1e3)
        if callable(made):
            return pairs.loss_and_gradients(lambda: made(pairs.embeddings, pairs.bank), towers)
        return pairs.contender(made)
    workload = Workload(shape, *given)
    X, P, y = workload.embeddings, workload.proxies, workload.labels
    if isinstance(made, str):
        return workload.contender(made)
    if family == "P_clean":
        return lambda: made(X.detach(), P.detach(), y)
    return workload.loss_and_gradients(lambda: made(X, P, y))


def measure(step: Step, device: str) -> dict[str, Any]:
    """Medians: ``step_s`` from the first launch to the end of the last kernel, with empty caches, and its interquartile
    range ``spread_s``; ``host_s`` until the host is free. ``backlog_s``: a step among others that the host has launched
    ahead, as in training. ``beyond_bytes``: peak memory beyond inputs and results.
    """
    if device != "cuda":
        start = time.perf_counter()
        step()
        taken = time.perf_counter() - start
        return {"step_s": taken, "spread_s": 0.0, "host_s": 0.0, "backlog_s": taken, "beyond_bytes": 0}
    for _ in range(2):
        step()
    scratch, steps, hosts = torch.empty(FLUSHED, dtype=torch.uint8, device=device), [], []
    while len(steps) < 3 or (len(steps) < ROUNDS and sum(steps) < SECONDS):
        scratch.zero_()
        torch.cuda.synchronize()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start = time.perf_counter()
        first.record()
        step()
        last.record()
        hosts.append(time.perf_counter() - start)
        last.synchronize()
        steps.append(first.elapsed_time(last) * 1e-3)
    low, middle, high = statistics.quantiles(steps, n=4)
    host = statistics.median(hosts)
    torch.cuda._sleep(int(2 * AHEAD * host * CLOCK))  # type: ignore[no-untyped-call]  # until the host is done
    first.record()
    for _ in range(AHEAD):
        step()
    last.record()
    last.synchronize()
    backlog = first.elapsed_time(last) * 1e-3 / AHEAD
    before = torch.cuda.memory_allocated()  # with the gradients of the last step, which the next one frees
    torch.cuda.reset_peak_memory_stats()
    step()
    beyond = torch.cuda.max_memory_allocated() - before
    told = {"step_s": middle, "spread_s": high - low, "host_s": host, "backlog_s": backlog}
    return told | {"beyond_bytes": beyond}


def profiled(step: Step, device: str) -> dict[str, Any]:
    """Launches, the kernels' time together, and the longest of them."""
    kind, times = "CUDA" if device == "cuda" else "CPU", Counter[str]()
    step()
    with torch.profiler.profile(activities=[getattr(torch.profiler.ProfilerActivity, kind)]) as profile:
        step()
        torch.cuda.synchronize() if device == "cuda" else None
    events = [each for each in profile.events() if each.device_type == getattr(torch.autograd.DeviceType, kind)]
    for event in events:
        times[event.name[:60]] += event.time_range.elapsed_us() * 1e-6
    return {"launches": len(events), "busy_s": sum(times.values()), "longest": dict(times.most_common(8))}
