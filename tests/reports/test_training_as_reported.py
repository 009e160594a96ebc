"""What users of this and of other libraries reported of training: graphs, schedules, processes, memory, optimisers.

A thread is named as project and number where one was found; the words and the cases are ours.
"""

import copy
import gc
import io
import math
import pickle
import threading

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from robustdml_ops.losses import (
    ArcFaceLoss,
    InfoNCELoss,
    MemoryContrastiveLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    SupConLoss,
)
from robustdml_ops.optim import ProxySGD
from robustdml_ops.robust import MemoryBank
from tests.every_call import LOSSES, B, C, D, labels, random

ONE_OF_EACH = ("ProxyAnchorLoss", "ArcFaceLoss", "MultiSimilarityLoss", "SupConLoss")


def batch(seed=0):
    return random(B, D, seed=seed), labels()


def step(loss, network, optimizers, X, y):
    """Of a usual training loop; the value."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    value = loss(network(X), y)
    value.backward()
    for optimizer in optimizers:
        optimizer.step()
    return value.item()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_graph_that_is_kept(name):
    """A second backward of one graph gives the same again, and the first one's gradients stay as they are."""
    loss, (X, y) = LOSSES[name].make(), batch()
    X.requires_grad_()
    value = loss(X, y)
    (first,) = torch.autograd.grad(value, X, torch.tensor(3.0, dtype=value.dtype), retain_graph=True)
    before = first.clone()
    (second,) = torch.autograd.grad(value, X)
    torch.testing.assert_close(first, before, rtol=0, atol=0)
    torch.testing.assert_close(first, 3 * second)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_two_batches_before_one_backward(name):
    loss, losses = LOSSES[name].make(), []
    leaves = [batch(seed)[0].requires_grad_() for seed in (0, 1)]
    losses = [loss(X, labels()) for X in leaves]
    together = torch.autograd.grad(losses[0] + 2 * losses[1], leaves)
    alone = [torch.autograd.grad(loss(X, labels()), X)[0] for X in leaves]
    torch.testing.assert_close(together, (alone[0], 2 * alone[1]))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_accumulated_gradients(name):
    """sentence-transformers 2916: what accumulation does. It adds gradients of batches that do not see each other."""
    loss, network = LOSSES[name].make(), torch.nn.Linear(D, D).double()
    for seed in (0, 1):
        (loss(network(batch(seed)[0]), labels()) / 2).backward()
    found = network.weight.grad.clone()
    network.zero_grad()
    (sum(loss(network(batch(seed)[0]), labels()) for seed in (0, 1)) / 2).backward()
    torch.testing.assert_close(found, network.weight.grad)


@pytest.mark.parametrize(
    ("make", "setting", "value"),
    [
        (lambda: ArcFaceLoss(C, D), "margin", 0.2),
        (lambda: ArcFaceLoss(C, D), "scale", 16.0),
        (lambda: ProxyAnchorLoss(C, D), "alpha", 8.0),
        (lambda: SupConLoss(), "temperature", 0.5),
    ],
)
def test_a_schedule_of_a_setting(make, setting, value):
    """A setting that changes between steps has its effect at once, and back."""
    loss, (X, y) = make().double(), batch()
    before = loss(X, y)
    other = copy.deepcopy(loss)
    setattr(other, setting, value)
    old = getattr(loss, setting)
    setattr(loss, setting, value)
    torch.testing.assert_close(loss(X, y), other(X, y))
    assert not torch.isclose(loss(X, y), before)
    setattr(loss, setting, old)
    torch.testing.assert_close(loss(X, y), before)


def test_two_optimisers_and_a_schedule_of_rates():
    """pytorch-metric-learning 534: which optimiser has the class matrix, and which scheduler."""
    torch.manual_seed(0)
    loss, network = NormalizedSoftmaxLoss(C, D, temperature=0.5), torch.nn.Linear(D, D)
    optimizers = [torch.optim.SGD(network.parameters(), 0.1), torch.optim.SGD(loss.parameters(), 1.0)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20) for optimizer in optimizers]
    X, values = random(B, D, dtype=torch.float32), []
    for _ in range(20):
        values.append(step(loss, network, optimizers, X, labels()))
        for schedule in schedules:
            schedule.step()
    assert values[-1] < 0.8 * values[0]


def test_a_network_that_is_frozen():
    """The class matrix alone learns, and nothing asks for a gradient of the embeddings."""
    for name in ("ProxyAnchorLoss", "ArcFaceLoss"):
        loss, (X, y) = LOSSES[name].make(), batch()
        loss(X, y).backward()
        assert all(parameter.grad.norm() > 0 for parameter in loss.parameters())


def test_a_loss_scaler():
    """A step whose gradients overflow is left out, and the factor halves."""
    loss, network = ArcFaceLoss(C, D), torch.nn.Linear(D, D)
    optimizer = torch.optim.SGD([*loss.parameters(), *network.parameters()], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = loss.W.detach().clone()
    scaler.scale(loss(network(random(B, D, dtype=torch.float32)), labels())).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(loss.W.detach(), before)
    assert scaler.get_scale() == 2.0**126


def test_clipping_beside_an_optimiser_in_the_sweep():
    """torchtune 1934: the gradient does not exist that a norm is asked of. Ours says so, or divides by a known norm."""
    loss = ProxyAnchorLoss(C, D)
    optimizer = ProxySGD(loss, lr=0.1)
    X = random(B, D, dtype=torch.float32).requires_grad_()
    with pytest.raises(RuntimeError, match="scale"):
        (3 * loss(X, labels())).backward()
    del optimizer  # bound to the proxies as long as it exists


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_copies(name):
    loss, (X, y) = LOSSES[name].make(), batch()
    expected = loss(X, y)
    saved = io.BytesIO()
    torch.save(loss.state_dict(), saved)
    saved.seek(0)
    again = LOSSES[name].make()
    again.load_state_dict(torch.load(saved, weights_only=True), strict=True)
    for other in (again, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        torch.testing.assert_close(other(X, y), expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_evaluation_has_the_same_numbers(name):
    loss, (X, y) = LOSSES[name].make().eval(), batch()
    expected = loss(X.clone().requires_grad_(), y).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(loss(X, y), expected)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_another_thread(name):
    loss, (X, y), found = LOSSES[name].make(), batch(), []
    thread = threading.Thread(target=lambda: found.append(loss(X, y)))
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], loss(X, y))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_checkpoints_of_activations(name):
    """sentence-transformers 2717: memory for time, around the network and the loss."""
    loss, network, (X, y) = LOSSES[name].make(), torch.nn.Linear(D, D).double(), batch()
    whole = lambda X: loss(network(X), y)  # noqa: E731
    expected = torch.autograd.grad(whole(X), network.weight)
    torch.testing.assert_close(torch.autograd.grad(checkpoint(whole, X, use_reentrant=False), network.weight), expected)


@pytest.mark.nightly
def test_memory_of_many_steps():
    """pytorch-metric-learning 421: memory grew with every step, beside a memory bank."""
    bank, loss, counts = MemoryBank(C, D, 64), MemoryContrastiveLoss(), []
    for seed in range(12):
        X = random(B, D, seed=seed, dtype=torch.float32).requires_grad_()
        loss(X, labels(), None, bank.features, bank.labels).backward()
        bank.enqueue(X.detach(), labels())
        del X
        gc.collect()
        counts.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
    assert counts[-1] <= counts[3]


def test_a_memory_bank_moves_with_its_module():
    """lightly 993: a bank that was no buffer stayed on the other device, and was in no checkpoint."""
    bank = MemoryBank(C, D, 64)
    assert {buffer.device.type for buffer in copy.deepcopy(bank).to("meta").buffers()} == {"meta"}
    assert {"features", "labels"} <= {name.rsplit(".", 1)[-1] for name in bank.state_dict()}


def test_a_temperature_that_runs_away():
    """CLIP 530, open_clip 104: e^logit_scale overflows; it is clamped at 100."""
    loss = InfoNCELoss(max_scale=100)
    with torch.no_grad():
        loss.logit_scale.fill_(200.0)
    value = loss(random(B, D, dtype=torch.float32), random(B, D, seed=1, dtype=torch.float32))
    assert value.isfinite()
    assert float(loss.logit_scale.detach()) == pytest.approx(math.log(100))


@pytest.mark.skipif(not dist.is_available(), reason="PyTorch without processes")
def test_replicas_that_accumulate(tmp_path):
    """pytorch-metric-learning 710, apex 1175: the loss within DistributedDataParallel, and no_sync."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        loss = ArcFaceLoss(C, D).double()
        replica, expected = DistributedDataParallel(copy.deepcopy(loss)), copy.deepcopy(loss)
        with replica.no_sync():
            replica(*batch(0)).backward()
        replica(*batch(1)).backward()
        for seed in (0, 1):
            expected(*batch(seed)).backward()
        torch.testing.assert_close(replica.module.W.grad, expected.W.grad)
    finally:
        dist.destroy_process_group()


@pytest.mark.nightly
def test_more_logits_than_an_int32_counts():
    """pytorch 90793, onnxruntime 32299: places beyond 2³¹ wrapped. Here such a matrix is in no memory either."""
    samples, classes = 2048, 2**20 + 5
    loss = NormalizedSoftmaxLoss(classes, 2)
    X, y = random(samples, 2, dtype=torch.float32), torch.full((samples,), classes - 1)
    assert samples * classes > 2**31
    with torch.no_grad():
        whole, tail = loss(X, y), NormalizedSoftmaxLoss(classes, 2, reduction="none")
        tail.load_state_dict(loss.state_dict())
        torch.testing.assert_close(whole, tail(X, y).mean(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(tail(X[-3:], y[-3:]), tail(X, y)[-3:], rtol=1e-5, atol=1e-5)
