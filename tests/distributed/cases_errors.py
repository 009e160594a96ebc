"""Wrong input, settings and processes: all processes raise, with the rank that is to blame, and nobody waits."""

import copy
import os
import pickle
import signal
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate

from robustdml_ops import losses
from robustdml_ops.distributed import ShardError, shard_classes
from robustdml_ops.optim import ProxyAdamW, ProxySGD
from robustdml_ops.robust import PRISM
from tests.distributed.worlds import case

LABELS = torch.tensor([0, 3, 8])


def a_loss(place, **options):
    return shard_classes(losses.ProxyAnchorLoss(9, 4, **options), place.mesh)


def goes_on_for_two_steps(loss, X, value):
    for _ in range(2):
        value.backward()
        value = loss(X, LABELS)


def goes_on(loss, place):
    """After an error that all know of."""
    assert torch.isfinite(loss(torch.randn(3, 4), LABELS)).item()


@case(2, 4)
def wrong_input_of_one_process(place):
    loss = a_loss(place)
    X = torch.randn(3, 4)
    wrong = {
        "labels[1] = 9 is outside": (X, torch.tensor([0, 9, 1]), IndexError),
        "embeddings[2] has NaN": (X.masked_fill(torch.arange(3)[:, None] == 2, torch.nan), LABELS, ValueError),
        "embeddings must have 4 columns": (torch.randn(3, 5), LABELS, ValueError),
        "labels are missing": (X, None, ValueError),
    }
    for message, (embeddings, labels, kind) in wrong.items():
        if place.rank == 1:
            with pytest.raises(kind, match=message.replace("[", r"\[").replace("]", r"\]")):
                loss(embeddings, labels)
        else:
            with pytest.raises(ShardError, match="because of rank 1: ") as caught:
                loss(X, LABELS)
            assert message in str(caught.value)
        goes_on(loss, place)


@case(3)
def processes_that_differ(place):
    loss = a_loss(place)
    last = place.rank == 2
    cases = {
        "embeddings is of torch.float32.* on rank 0 and of torch.float64.* on rank 2": {
            "embeddings": torch.randn(3, 4, dtype=torch.float64 if last else torch.float32)
        },
        "sample_weights is not given on rank 0 and of torch.float32 on rank 2": {
            "embeddings": torch.randn(3, 4), "sample_weights": torch.ones(3) if last else None
        },
        "with a gradient on rank 2": {"embeddings": torch.randn(3, 4, requires_grad=last)},
    }  # fmt: skip
    for message, given in cases.items():
        with pytest.raises(ShardError, match=message):
            loss(given.pop("embeddings"), LABELS, **given)
        goes_on(loss, place)
    loss.alpha = 16 if last else 32
    with pytest.raises(ShardError, match="alpha is 32 on rank 0 and 16 on rank 2"):
        goes_on(loss, place)
    loss.alpha = 32
    loss.to(torch.bfloat16 if last else torch.float32)
    with pytest.raises(ShardError, match=r"the type of proxies is 'torch\.float32' on rank 0 and 'torch\.bfloat16' on"):
        goes_on(loss, place)
    loss.float()
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=last)
    with autocast, pytest.raises(ShardError, match=r"under autocast to torch\.bfloat16 on rank 2"):
        goes_on(loss, place)
    goes_on(loss, place)
    filters = partial(PRISM, 9, 4, memory_size=6)
    for made, message in (
        (losses.ProxyAnchorLoss(10 if last else 9, 4), "num_classes is 9 on rank 0 and 10 on rank 2"),
        (losses.ProxyAnchorLoss(9, 4, margin=0.2 if last else 0.1), "margin is 0.1 on rank 0 and 0.2 on rank 2"),
        (
            losses.ProxyAnchorLoss(9, 4) if last else losses.NormalizedSoftmaxLoss(9, 4),
            "NormalizedSoftmaxLoss.backend is None on rank 0 and not there on rank 2",
        ),
        (
            losses.CosFaceLoss(9, 4, torch.linspace(0, 0.3 if last else 0.4, 9)),
            r"margin is '\(9,\) of torch.float32: checksum \d+' on rank 0 and '\(9,\) of torch.float32: checksum",
        ),
        (
            losses.ProxyAnchorLoss(9, 4, negative_share=0.5, negative_seed=int(last)),
            r"negatives.state is '\(2,\) of torch.int64: \[0, 0\]' on rank 0 and .*\[1, 0\]' on rank 2",
        ),
        (filters(noise_rate=0.5 if last else 0.3), r"SmoothTopR.rate is 0\.3 on rank 0 and 0\.5 on rank 2"),
        (
            filters(noise_rate=0.3, memory_dtype=torch.bfloat16 if last else torch.float32),
            r"bank.features is '\(6, 4\) of torch.float32: .* on rank 0 and '\(6, 4\) of torch.bfloat16: .* on rank 2",
        ),
    ):
        with pytest.raises(ShardError, match=message):
            shard_classes(made, place.mesh)


@case(3)
def optimisers_that_differ(place):
    """Another rate, another optimiser, or another factor of the loss on one process is told by all, and mended."""
    last = place.rank == 2
    for make, message in (
        (
            lambda loss: ProxyAdamW(loss, lr=0.2 if last else 0.1),
            "lr of its optimiser is 0.1 on rank 0 and 0.2 on rank 2",
        ),
        (
            lambda loss: ProxySGD(loss, lr=0.1) if last else ProxyAdamW(loss, lr=0.1),
            "its optimiser is 'ProxyAdamW' on rank 0 and 'ProxySGD' on rank 2",
        ),
        (
            lambda loss: ProxyAdamW(loss, lr=0.1) if last else torch.optim.AdamW(loss.parameters()),
            "its optimiser is not there on rank 0 and 'ProxyAdamW' on rank 2",
        ),
    ):
        loss = a_loss(place)
        optimizer = make(loss)
        with pytest.raises(ShardError, match=message):
            loss(torch.randn(3, 4), LABELS)
        del optimizer
    loss = a_loss(place)
    optimizer = ProxyAdamW(loss, lr=0.1)
    loss(torch.randn(3, 4, requires_grad=True), LABELS).backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.05 if last else 0.01  # a schedule that one process has missed
    with pytest.raises(ShardError, match=r"lr of its optimiser is 0\.01 on rank 0 and 0\.05 on rank 2"):
        loss(torch.randn(3, 4), LABELS)
    loss = a_loss(place)
    value = loss(torch.randn(3, 4, requires_grad=True), LABELS)
    with pytest.raises(ShardError, match=r"the gradient of the loss is 1 on rank 0 and 0\.5 on rank 2"):
        (value * (0.5 if last else 1.0)).backward()
    assert loss.proxies.grad is None
    goes_on(loss, place)


@case(2)
def one_process_has_another_state(place):
    """As after a checkpoint that one process alone has loaded: counts of steps differ."""
    X, last = torch.randn(3, 4, requires_grad=True), place.rank == 1
    loss, drawn = a_loss(place), a_loss(place, negative_share=0.5)
    optimizer = ProxyAdamW(loss)
    prism = shard_classes(PRISM(9, 4, noise_rate=0.3, memory_size=6), place.mesh)
    loss(X, LABELS).backward()
    optimizer.step()
    drawn(X, LABELS)
    prism.enqueue(X, LABELS, prism(X, LABELS).keep)
    if last:
        optimizer.state[loss.proxies]["step"].zero_()
        drawn.negatives.state[1] = 0
        prism.bank.enqueued.zero_()
    for module, message in (
        (loss, "the steps of its optimiser is 1 on rank 0 and 0 on rank 1"),
        (drawn, r"seed and step of its negatives is \[0, 1\] on rank 0 and \[0, 0\] on rank 1"),
        (prism, "the count scores.bank.enqueued is 6 on rank 0 and 0 on rank 1"),
    ):
        with pytest.raises(ShardError, match=message):
            module(X, LABELS)


@case(2)
def what_cannot_be_sharded(place):
    with pytest.raises(ValueError, match=r"device_mesh has 2 dimensions \('a', 'b'\)"):
        shard_classes(losses.ProxyAnchorLoss(9, 4), init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b")))
    with pytest.raises(ValueError, match="num_classes=1 is less than the 2 processes"):
        shard_classes(losses.ProxyAnchorLoss(1, 4), place.mesh)
    with pytest.raises(ValueError, match="ProxyAnchorLoss is sharded already"):
        shard_classes(a_loss(place), place.mesh)
    for module in (nn.Linear(2, 3), nn.ModuleDict({"loss": losses.ProxyAnchorLoss(9, 4)})):
        with pytest.raises(TypeError, match=f"{type(module).__name__} has no classes to divide"):
            shard_classes(module, place.mesh)
    with pytest.raises(ValueError, match="dml of ProcSimLoss"):
        shard_classes(losses.ProcSimLoss(9, 4, dml=lambda embeddings, labels: embeddings.sum(1)), place.mesh)
    whole = DTensor.from_local(torch.randn(3, 4), place.mesh, [Replicate()])
    with pytest.raises(TypeError, match=r"embeddings is a DTensor.*full_tensor\(\)"):
        losses.ProxyAnchorLoss(9, 4)(whole, LABELS)
    view = shard_classes(losses.MultiSimilarityLoss(), place.mesh)
    with pytest.raises(ValueError, match="ref_emb has 2 rows, and without ref_labels they are another view of the 3"):
        view(torch.randn(3, 4), LABELS, None, torch.randn(2, 4), LABELS)
    with pytest.raises(ValueError, match="backbone_gradients='mean': expected one of averaged, summed"):
        shard_classes(losses.ProxyAnchorLoss(9, 4), place.mesh, backbone_gradients="mean")
    smooth = shard_classes(losses.SmoothProxyAnchorLoss(9, 4), place.mesh)
    with pytest.raises(ValueError, match="give the factors"):
        smooth(torch.randn(3, 4), torch.rand(3, 9))
    with pytest.raises(ValueError, match="there are 9"):
        smooth(torch.randn(3, 4), (torch.randn(3, 2), torch.randn(8, 2), torch.randn(8)))
    loss = a_loss(place)
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(loss)
    before = loss.proxies.full_tensor()
    with pytest.raises(RuntimeError, match="size mismatch for proxies"):
        loss.load_state_dict({"proxies": torch.zeros(8, 4)})
    assert torch.equal(loss.proxies.full_tensor(), before)
    value = copy.deepcopy(loss)(X := torch.randn(3, 4, requires_grad=True), LABELS)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.grad(value, X, create_graph=True)[0].sum().backward()


@case(2)
def regularisers_and_reducers_of_the_peer(place):
    pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.reducers import SumReducer
    from pytorch_metric_learning.regularizers import LpRegularizer

    for options, message in (
        ({"reducer": SumReducer()}, "reducer=MultipleReducers.* of ProxyAnchorLoss"),
        ({"weight_regularizer": LpRegularizer()}, "weight_regularizer=LpRegularizer"),
    ):
        with pytest.raises(ValueError, match=message):
            shard_classes(losses.ProxyAnchorLoss(9, 4, **options), place.mesh)


@case(3)
def a_proxy_of_one_process_is_nan(place):
    """It raises what it would alone, and the others name it; they have parted then."""
    loss = a_loss(place)
    if place.rank == 1:
        with torch.no_grad():
            loss.proxies.to_local()[0, 0] = torch.nan
    kind, message = (ValueError, "has NaN") if place.rank == 1 else (ShardError, "rank 1: ValueError: the loss is nan")
    with pytest.raises(kind, match=message):
        loss(torch.randn(3, 4), LABELS)
    with pytest.raises(ShardError, match="the processes have parted"):
        loss(torch.randn(3, 4), LABELS)


@case(2, 4)
def one_process_leaves_out_a_backward(place):
    """Forward of the next call meets backward of this one: all say who is where."""
    loss = a_loss(place)
    loss(torch.randn(3, 4, requires_grad=True), LABELS).backward()
    value = loss(torch.randn(3, 4, requires_grad=True), LABELS)
    go_on = partial(loss, torch.randn(3, 4), LABELS) if place.rank == 1 else value.backward
    with pytest.raises(
        ShardError, match=r"rank 0 is in the backward, after 2 checks .*; rank 1 is in the forward, after 3 checks "
    ):
        go_on()
    with pytest.raises(ShardError, match="the processes have parted"):
        loss(torch.randn(3, 4), LABELS)


@case(2)
def one_process_comes_late(place):
    """A timeout ends the wait, and says what each process does."""
    loss = shard_classes(losses.ProxyAnchorLoss(9, 4), place.mesh, timeout=timedelta(seconds=1))
    if place.rank == 1:
        time.sleep(3)
    with pytest.raises(
        ShardError,
        match=r"rank 0 is in the look at .* after 1 checks of input; rank 1 is elsewhere, .* All of them run",
    ):
        loss(torch.randn(3, 4), LABELS)


@case(2)
def one_process_does_not_shard(place):
    """The last case of its world: the processes have counted other numbers of calls."""
    if place.rank == 1:
        return
    with pytest.raises(ShardError, match=r"ranks \[1\] of \[0, 1\] have not called shard_classes within 0:00:01"):
        shard_classes(losses.ProxyAnchorLoss(9, 4), place.mesh, timeout=timedelta(seconds=1))


@case(3, 4)
def a_process_dies(place):
    """All others end and name it alone, also where a living process stands between."""
    loss = shard_classes(losses.ProxyAnchorLoss(9, 4), place.mesh, timeout=timedelta(seconds=5))
    X = torch.randn(3, 4, requires_grad=True)
    value = loss(X, LABELS)
    if place.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(ShardError, match=r"failed: rank 2 does not answer: it has ended or is stopped \("):
        goes_on_for_two_steps(loss, X, value)
    assert time.monotonic() - start < 15
