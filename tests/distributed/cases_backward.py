"""One process raises within backward: it raises what it would alone, and all others name it instead of waiting."""

import ctypes
import signal
import time
from functools import partial

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.distributed import ShardError, shard_classes
from robustdml_ops.optim import ProxyAdamW
from tests.distributed.worlds import NIGHTLY, case, register

LABELS = torch.tensor([0, 3, 8])
OVER_CLASSES = {
    "normalized_softmax": losses.NormalizedSoftmaxLoss,
    "arcface": losses.ArcFaceLoss,
    "soft_triple": losses.SoftTripleLoss,
    "proxy_nca": losses.ProxyNCALoss,
}
FAMILIES = {
    **{name: partial(make, 9, 4) for name, make in OVER_CLASSES.items()},
    "proxy_anchor": partial(losses.ProxyAnchorLoss, 9, 4),
    "adaptive": partial(losses.AdaptiveProxyAnchorLoss, 9, 4, per_class=True),
    "sampled": partial(losses.NormalizedSoftmaxLoss, 9, 4, negative_share=0.5),
    "proxy_anchor_terms": partial(losses.ProxyAnchorLoss, 9, 4, reduction="none"),
    "softmax_terms": partial(losses.NormalizedSoftmaxLoss, 9, 4, reduction="none"),
    "multi_similarity": losses.MultiSimilarityLoss,
    "contrastive": losses.ContrastiveLoss,
    "supcon": losses.SupConLoss,
    "supcon_terms": partial(losses.SupConLoss, reduction="none"),
    "ntxent": losses.NTXentLoss,
    "procsim": partial(losses.ProcSimLoss, 9, 4),
    "super_contrastive": losses.SuperContrastiveLoss,
}


def raises_soon(place, kind, message, told, backward):
    """Rank 1 raises ``kind``, and the others what is ``told`` of it."""
    start = time.monotonic()
    expected = (kind, message) if place.rank == 1 else (ShardError, told)
    with pytest.raises(expected[0], match=expected[1]):
        backward()
    assert time.monotonic() - start < 15


def lacks_memory(name, place):
    """On rank 1 the node fails that sends the embeddings' gradients, for which the others wait."""
    loss = shard_classes(FAMILIES[name](), place.mesh)
    value = loss(torch.randn(3, 4, requires_grad=True), LABELS).sum()
    if place.rank == 1:
        for node in nodes_named("GatherBackward", value.grad_fn):
            node.register_prehook(fail)
    told = "rank 1: an error in its backward, which it has raised itself"
    raises_soon(place, torch.OutOfMemoryError, "no memory is left", told, value.backward)
    with pytest.raises(ShardError, match="the processes have parted"):
        loss(torch.randn(3, 4), LABELS)


def fail(_):
    raise torch.OutOfMemoryError("no memory is left")


def nodes_named(name, root):
    """Nodes of the graph of ``root``."""
    found, left = [], [root]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.append(node)
            left += [other for other, _ in node.next_functions]
    return [node for node in found if node.name() == name]


SHORT = {"normalized_softmax", "supcon"}
for _name in FAMILIES:
    register(f"no_memory_in_{_name}", partial(lacks_memory, _name), 2)
    if _name not in SHORT:
        NIGHTLY.add((2, f"backward.no_memory_in_{_name}"))
register("no_memory_among_three", partial(lacks_memory, "normalized_softmax"), 3)


@case(2)
def a_signal_at_the_end_of_a_backward_is_not_lost(place):
    """It comes in a callback of C++, as while DDP waits for its sums, and no Python function runs before the end."""
    loss = shard_classes(losses.NormalizedSoftmaxLoss(9, 4), place.mesh)
    strike = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
    engine = torch.autograd.Variable._execution_engine
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        value = loss(torch.randn(3, 4, requires_grad=True), LABELS)
        (node,) = nodes_named("GatherBackward", value.grad_fn)
        node.register_prehook(lambda _: engine.queue_callback(strike))
        with pytest.raises(KeyboardInterrupt):
            value.backward()
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.isfinite(loss(torch.randn(3, 4), LABELS)).item()


def changes_the_proxies(loss, optimizer, value):
    with torch.no_grad():
        loss.get_parameter(loss.matrix_name).mul_(1)
    return value


def forgets_a_step(loss, optimizer, value):
    """As after a batch whose step() has not come."""
    optimizer._steps[0].swept = True
    return value


def has_another_factor(loss, optimizer, value):
    return value * 2


def has_another_gradient(loss, optimizer, value):
    loss.get_parameter(loss.matrix_name).grad = torch.zeros_like(loss.get_parameter(loss.matrix_name))
    return value


SPOILT = {
    changes_the_proxies: "the proxies have been updated since this loss was computed",
    forgets_a_step: r"these proxies have been updated since the last step\(\)",
    has_another_factor: "the gradient of the loss is 2, and the optimiser of its proxies takes 1",
    has_another_gradient: "the proxies have a gradient that did not come from a sweep",
}


@case(2, 3)
def an_optimiser_is_not_ready(place):
    """All learn why before anything is sent or updated, and go on."""
    names = {**dict.fromkeys(OVER_CLASSES, SPOILT), "proxy_anchor": (has_another_factor, has_another_gradient)}
    for name, spoilt in names.items():
        for spoil in spoilt:
            loss = shard_classes(FAMILIES[name](), place.mesh)
            optimizer = ProxyAdamW(loss, lr=0.1)
            value = loss(torch.randn(3, 4, requires_grad=True), LABELS)
            if place.rank == 1:
                value = spoil(loss, optimizer, value)
            before = loss.get_parameter(loss.matrix_name).to_local().clone()
            told = f"no process has done this backward, because of rank 1: RuntimeError: {SPOILT[spoil]}"
            raises_soon(place, RuntimeError, SPOILT[spoil], told, value.backward)
            assert torch.equal(loss.get_parameter(loss.matrix_name).to_local(), before)
            optimizer.abandon()
            loss.zero_grad()
            loss(torch.randn(3, 4, requires_grad=True), LABELS).backward()
            optimizer.step()
