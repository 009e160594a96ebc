"""What others make of the same inputs. A library that is not installed is a reason, told in its row."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from robustdml_ops.python_ref import proxy_anchor_loss

from ..shapes import Shape
from .sheet import Absent, Sheet
from .steps import STEPS, Inputs, flops, with_proxies
from .timing import Step, measure


def required(module: str, package: str) -> ModuleType:
    """The module, or the reason why it is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Absent(f"{package} is not installed ({error})") from error


def pml_proxy_anchor(inputs: Inputs) -> Step:
    pml = required("pytorch_metric_learning.losses", "pytorch-metric-learning")
    module = with_proxies(pml.ProxyAnchorLoss(1, inputs.shape.D), inputs.proxies)
    return inputs.step(lambda X, P, y: module(X, y))


def pml_proxy_nca(inputs: Inputs) -> Step:
    pml = required("pytorch_metric_learning.losses", "pytorch-metric-learning")
    module = with_proxies(pml.ProxyNCALoss(1, inputs.shape.D), inputs.proxies)
    module.proxy_labels = torch.arange(inputs.shape.C, device=inputs.device)
    return inputs.step(lambda X, P, y: module(X, y))


def pml_multi_similarity(inputs: Inputs) -> Step:
    pml = required("pytorch_metric_learning.losses", "pytorch-metric-learning")
    miner = required("pytorch_metric_learning.miners", "pytorch-metric-learning").MultiSimilarityMiner(0.1)
    loss = pml.MultiSimilarityLoss(2.0, 50.0, 0.5)
    return inputs.step_of_pairs(lambda X, y: loss(X, y, miner(X, y)))


def dense_proxy_anchor(inputs: Inputs) -> Step:
    """The paper's formula in plain PyTorch."""
    return inputs.step(lambda X, P, y: proxy_anchor_loss(X, P, y))


def cross_entropy(X: Tensor, P: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(X, P), y)


def torch_cross_entropy(inputs: Inputs) -> Step:
    return inputs.step(cross_entropy)


def torch_linear_cross_entropy(inputs: Inputs, chunked: bool = False) -> Step:
    """Without options what PyTorch does by default; chunked, by its own choice of chunks."""
    if not hasattr(functional, "linear_cross_entropy"):
        raise Absent(f"torch {torch.__version__} has no linear_cross_entropy: it is of 2.13")
    options = {"options": torch.nn.LinearCrossEntropyOptions()} if chunked else {}
    return inputs.step(lambda X, P, y: functional.linear_cross_entropy(X, P, y, **options))


def liger(inputs: Inputs, **options: Any) -> Step:
    module = required("liger_kernel.transformers", "liger-kernel")
    if inputs.device.type != "cuda":
        raise Absent("liger-kernel runs on GPUs")
    loss = module.LigerFusedLinearCrossEntropyLoss(**options)
    return inputs.step(lambda X, P, y: loss(P, X, y))


def cut_cross_entropy(inputs: Inputs, **options: Any) -> Step:
    """By default it leaves out gradients that are small; with ``filter_eps=None`` none."""
    module = required("cut_cross_entropy", "cut-cross-entropy")
    if inputs.device.type != "cuda":
        raise Absent("cut-cross-entropy runs on GPUs")
    return inputs.step(lambda X, P, y: module.linear_cross_entropy(X, P, y, **options))


PEERS: dict[str, Callable[[Inputs], Step]] = {
    **{f"robustdml, {name}": STEPS[name] for name in ("proxy-anchor", "proxy-nca", "multi-similarity", "otsu")},
    "pytorch-metric-learning, proxy-anchor": pml_proxy_anchor,
    "pytorch-metric-learning, proxy-nca": pml_proxy_nca,
    "pytorch-metric-learning, multi-similarity": pml_multi_similarity,
    "dense PyTorch, proxy-anchor": dense_proxy_anchor,
    "cross_entropy(linear)": torch_cross_entropy,
    "linear_cross_entropy": torch_linear_cross_entropy,
    "linear_cross_entropy, chunked": partial(torch_linear_cross_entropy, chunked=True),
    "liger-kernel": liger,
    "liger-kernel, sums in float32": partial(liger, accum_dtype=torch.float32),
    "cut-cross-entropy": cut_cross_entropy,
    "cut-cross-entropy, all gradients": partial(cut_cross_entropy, filter_eps=None),
}


def of_peer(sheet: Sheet, name: str, dtype: str, shape: Shape, compiled: bool = False) -> Mapping[str, Any]:
    """Measure one of PEERS; compiled by ``torch.compile`` where that is asked for."""
    inputs, floor = Inputs(shape, dtype, sheet.device), sheet.floor(flops(shape), dtype)
    if not compiled:
        return {**measure(PEERS[name](inputs), sheet.device), **floor}
    loss = {"cross_entropy(linear)": cross_entropy, "dense PyTorch, proxy-anchor": proxy_anchor_loss}[name]
    # A dry run has no compiler to wait for.
    whole = torch.compile(loss, backend="aot_eager" if sheet.dry_run else "inductor")
    return {**measure(inputs.step(lambda X, P, y: whole(X, P, y)), sheet.device), **floor}
