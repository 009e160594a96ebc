"""Training on shards ends where training on one process does: DDP, FSDP2, PyTorch's optimisers, and its checkpoints."""

import copy
from functools import partial

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from robustdml_ops import backward_in_micro_batches, losses
from robustdml_ops.distributed import shard_classes
from robustdml_ops.robust import MemoryBank
from tests.distributed.cases_losses import LOSSES, make
from tests.distributed.worlds import CLASSES, batches_of, case, register

C, F, D = CLASSES, 8, 6
OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, fused=False, foreach=True, weight_decay=0.1),
    "adamw_fused": partial(torch.optim.AdamW, fused=True, weight_decay=0.1),
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(F, 7), nn.Tanh(), nn.Linear(7, D)).double()


def batches(place):
    """Three batches of all processes."""
    return batches_of(place, 3, F, CLASSES, seed=5)


def steps(place, backbone, loss, part, kind):
    """Train; the norm of the proxies' gradient is clipped."""
    optimizer = OPTIMIZERS[kind]([{"params": backbone.parameters()}, {"params": loss.parameters()}], lr=0.05)
    for inputs, labels in batches(place):
        loss(backbone(inputs[part]), labels[part]).backward()
        torch.nn.utils.clip_grad_norm_(list(loss.parameters()), 0.2)
        optimizer.step()
        optimizer.zero_grad()


def assert_trained_alike(one, many, backbone, wrapped):
    for (name, parameter), sharded in zip(one.named_parameters(), many.parameters(), strict=True):
        expected = one.by_class(name, parameter) if name == "fc" else parameter
        torch.testing.assert_close(sharded.full_tensor(), expected, rtol=0, atol=1e-9)
    for parameter, other in zip(backbone.parameters(), wrapped.parameters(), strict=True):
        whole = other.full_tensor() if isinstance(other, DTensor) else other
        torch.testing.assert_close(whole, parameter, rtol=0, atol=1e-9)


def trained(place, wrap, name, kind):
    backbone, one = network(), make(name)
    wrapped, many = wrap(network(), place), shard_classes(copy.deepcopy(one), place.mesh)
    steps(place, backbone, one, slice(None), kind)
    steps(place, wrapped, many, place.own, kind)
    assert_trained_alike(one, many, backbone, wrapped)


def ddp(module, place):
    return DistributedDataParallel(module)


def fsdp(module, place):
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=place.mesh)
    return fully_shard(module, mesh=place.mesh)


for _kind in OPTIMIZERS:
    register(f"ddp_{_kind}", lambda place, kind=_kind: trained(place, ddp, "adaptive_per_class", kind), 2, 3)
register("ddp_soft_triple", lambda place: trained(place, ddp, "soft_triple", "adamw_fused"), 4)
register("ddp_by_columns", lambda place: trained(place, ddp, "normalized_softmax", "sgd"), 2)
register("ddp_one_margin", lambda place: trained(place, ddp, "adaptive", "adamw"), 2)
if torch.__version__ >= "2.7":  # compared as versions; the fully_shard of 2.6 needs a GPU's streams
    register("fsdp2", lambda place: trained(place, fsdp, "proxy_nca", "adamw"), 2, 4)


@case(2, 3)
def micro_batches_train_as_the_whole_batch_on_one_process(place):
    """Network within DDP and classes on shards, against whole batches on one process; DDP reduces once a step."""
    for name in ("adaptive_per_class", "normalized_softmax", "proxy_nca"):
        backbone, one = network(), make(name)
        wrapped, many = ddp(network(), place), shard_classes(copy.deepcopy(one), place.mesh)
        reductions = []

        def count(_, bucket, seen=reductions):
            seen.append(bucket.index())
            return allreduce_hook(None, bucket)

        wrapped.register_comm_hook(None, count)
        steps(place, backbone, one, slice(None), "sgd")
        optimizer = OPTIMIZERS["sgd"]([{"params": wrapped.parameters()}, {"params": many.parameters()}], lr=0.05)
        for inputs, labels in batches(place):
            own = labels[place.own]
            tower = wrapped, inputs[place.own]
            backward_in_micro_batches(partial(many, labels=own), tower, micro_batch=2)
            torch.nn.utils.clip_grad_norm_(list(many.parameters()), 0.2)
            optimizer.step()
            optimizer.zero_grad()
        assert len(reductions) == 3
        assert_trained_alike(one, many, backbone, wrapped)


@case(2)
def a_loss_within_an_activation_checkpoint(place):
    """Recomputation stops once all saved tensors are there, which is between two collectives of the loss."""
    X, labels = next(batches_of(place, 1, D, CLASSES, seed=5))
    for name in ("normalized_softmax", "proxy_nca"):
        one, rows, own = make(name), X.clone().requires_grad_(), X[place.own].clone().requires_grad_()
        many = shard_classes(copy.deepcopy(one), place.mesh, backbone_gradients="summed")
        one(rows, labels).backward()
        checkpoint(many, own, labels[place.own], use_reentrant=False).backward()
        torch.testing.assert_close(own.grad, rows.grad[place.own], rtol=0, atol=1e-10)


class Checkpoint:
    """Model and optimiser, whose names DCP knows them by."""

    def __init__(self, loss):
        self.model = nn.ModuleDict({"network": network(), "loss": loss})
        groups = [{"params": part.parameters()} for part in self.model.values()]
        self.optimizer = OPTIMIZERS["sgd"](groups, lr=0.05)

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load(self, folder):
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def save(place, name, folder):
    """Train a little and save."""
    saved = Checkpoint(shard_classes(make(name), place.mesh))
    for parameter in saved.model.parameters():
        parameter.grad = parameter.detach().clone() * 0.5
    saved.optimizer.step()
    dcp.save(saved.state(), checkpoint_id=folder)
    return saved


@case(2, 3, 4)
def a_checkpoint_loads_on_as_many_and_on_one(place):
    """Proxies, margins and the optimiser's state; the whole of it in a single process's ``state_dict``."""
    for name in ("adaptive_per_class", "normalized_softmax", "soft_triple"):
        folder = place.folder / f"{place.size}-{name}"
        saved = save(place, name, folder)
        again = Checkpoint(shard_classes(make(name), place.mesh))
        again.load(folder)
        states = (checkpoint.state()["optimizer"]["state"] for checkpoint in (saved, again))
        for (key, value), other in zip(*(state.items() for state in states), strict=True):
            assert torch.equal(_local(value["momentum_buffer"]), _local(other[1]["momentum_buffer"])), key
        whole = get_model_state_dict(again.model, options=StateDictOptions(full_state_dict=True))
        one = nn.ModuleDict({"network": network(), "loss": make(name)})
        one.load_state_dict(whole)
        back = shard_classes(make(name), place.mesh)
        back.load_state_dict(one["loss"].state_dict())
        if place.rank == 0:
            dcp_to_torch_save(folder, f"{folder}.pt")
            whole = torch.load(f"{folder}.pt", weights_only=True)["model"]
            plain = make(name)
            plain.load_state_dict({key[5:]: value for key, value in whole.items() if key.startswith("loss.")})
            for parameter, other in zip(plain.parameters(), one["loss"].parameters(), strict=True):
                assert torch.equal(parameter, other)
        for parameter, other in zip(saved.model["loss"].parameters(), back.parameters(), strict=True):
            assert torch.equal(parameter.to_local(), other.to_local())


@case(1, 3, 4)
def a_checkpoint_of_other_processes_loads(place):
    """What a world before this one has saved: proxies and momentum."""
    saved_on = {1: 1, 3: 2, 4: 3}[place.size]
    folder = place.folder / f"{saved_on}-normalized_softmax"
    if saved_on == 1:
        save(place, "normalized_softmax", folder)
    again = Checkpoint(shard_classes(make("normalized_softmax"), place.mesh))
    again.load(folder)
    start = make("normalized_softmax").W.detach()
    momentum = again.state()["optimizer"]["state"]["loss.W"]["momentum_buffer"]
    torch.testing.assert_close(again.model["loss"].W.detach().full_tensor(), start - 0.05 * 0.5 * start)
    torch.testing.assert_close(momentum.full_tensor(), 0.5 * start)


def _local(value):
    return value.to_local() if isinstance(value, DTensor) else value


class Sent(TorchDispatchMode):
    """Bytes that a process hands to the collectives of a step, by their kind."""

    def __init__(self):
        super().__init__()
        self.bytes = dict.fromkeys(("gather", "reduce"), 0)

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace == "c10d":
            name = function._schema.name.partition("::")[2]
            kind = next(kind for part, kind in KINDS.items() if part in name)
            given = arguments[0] if kind == "reduce" else arguments[1]
            for tensor in [given] if isinstance(given, torch.Tensor) else given:
                self.bytes[kind] += tensor.numel() * tensor.element_size()
        return function(*arguments, **(options or {}))


KINDS = {"allgather": "gather", "allreduce": "reduce"}


def assert_sent(place, loss, given, gathered, reduced):
    """Beside headers and embeddings (6, D) forward and backward gather and reduce so many bytes."""
    rows, loss = 6 * D * 8, shard_classes(loss.double(), place.mesh)
    with Sent() as sent:
        loss(*given).backward()
    assert sent.bytes == {"gather": 2 * 48 + rows + gathered, "reduce": place.size * rows + reduced}


@case(2, 4)
def bytes_of_a_step(place):
    """As docs/large-classes.md has them: nothing grows with the number of classes, a miner's list stays where it is."""
    B, W, item = 6, place.size, 8
    X, other = torch.randn(2, B, D, dtype=torch.float64, requires_grad=True)
    labels, pairs = torch.arange(B), (torch.arange(B) + B * place.rank,) * 2 + (torch.empty(0, dtype=torch.int64),) * 2
    for classes in (C, 50 * C):
        assert_sent(place, losses.ProxyAnchorLoss(classes, D), (X, labels), 8 * B, item)
        assert_sent(place, losses.NormalizedSoftmaxLoss(classes, D), (X, labels), 8 * B, 3 * W * B * item)
        assert_sent(place, losses.SoftTripleLoss(classes, D, 2), (X, labels), 8 * B, 3 * W * B * item)
    assert_sent(place, losses.MultiSimilarityLoss(), (X, labels), 8 * B, item)
    assert_sent(place, losses.SuperContrastiveLoss(), (X, labels), 8 * B, item + 3 * 16)
    assert_sent(place, losses.ContrastiveLoss(), (X, None, pairs), 48, item + 16 + 32)
    assert_sent(place, losses.NormalizedSoftmaxLoss(C, D), (X, labels, pairs), 8 * B + 48, W * B * 32 + 32)
    # The gradients of temperature and bias; no labels.
    for loss in (
        losses.InfoNCELoss(),
        losses.InfoNCELoss(symmetric=False),
        losses.InfoNCELoss(q=0.5),
        losses.SigmoidLoss(),
    ):
        assert_sent(place, loss, (X, other), B * D * item, W * B * D * item + item + 2 * item)
    texts = torch.randn(B, 3, 5, dtype=torch.float64)
    assert_sent(place, losses.LanguageGuidanceLoss(), (X, texts), B * 15 * item, item)


@case(2, 4)
def bytes_of_a_divided_bank(place):
    """Storing a batch sends the rows that may leave; comparing with it sends no row of it. Nothing grows with it."""
    B, W, item = 6, place.size, 8
    X, labels = torch.randn(B, D, dtype=torch.float64, requires_grad=True), torch.arange(B)
    for capacity in (64, 4096):
        bank = shard_classes(MemoryBank(C, D, capacity, torch.float64), place.mesh)
        with Sent() as sent:
            bank.enqueue(X, labels)
        kept = B
        assert sent.bytes == {"gather": 48 + B * D * item + B * 8 + kept, "reduce": W * B * (D * item + 8)}
        for loss, gathered, reduced in (
            (losses.MemoryContrastiveLoss(), 0, 2 * item),
            (losses.ContrastiveLoss(), 0, item + 2 * 8),
            (losses.MultiSimilarityLoss(), B * item, item + 4 * W * B * item),
        ):
            given = X, labels, None, bank.features, bank.labels
            assert_sent(place, loss, given, 8 * B + gathered, reduced)


@case(2)
def proxies_that_were_nowhere(place):
    """On the meta device first: each process makes its own part, at the scale that one process gives them."""
    with torch.device("meta"):
        loss = LOSSES["adaptive_per_class"].func(4000, 16, per_class=True)
    loss = shard_classes(loss, place.mesh)
    proxies = loss.proxies.detach().full_tensor()
    assert loss.proxies.to_local().shape == (2000, 16)
    assert abs(float(proxies.std()) / (2 / 4000) ** 0.5 - 1) < 0.05
    assert not torch.equal(proxies[:2000], proxies[2000:])
    assert (loss.margins.full_tensor() == loss.margin).all()
    loss(torch.randn(3, 16), torch.tensor([0, 2000, 3999])).backward()


@case(3)
def a_loaded_loss_is_copied(place):
    """With ``assign=True`` it keeps what it was given, which must hold the rows of one shard alone."""
    loss = shard_classes(make("arcface"), place.mesh)
    loss.load_state_dict(make("arcface").state_dict(), assign=True)
    local = copy.deepcopy(loss).W.to_local()
    assert torch.equal(local, loss.W.to_local())
    assert loss.W.to_local().untyped_storage().nbytes() == local.numel() * local.element_size()


@case(3)
def meshes_of_some_processes_overlap(place):
    """Processes of a mesh are in different numbers of groups already."""
    for ranks in ([0, 1], [1, 2], [0, 2]):
        mesh = DeviceMesh("cpu", ranks)
        if place.rank in ranks:
            shard_classes(make("arcface"), mesh)
