"""Drawn classes, and optimisers within the sweep, on shards against one process: float64, 1e-10."""

import copy
from functools import partial

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn.utils import prune

from robustdml_ops import losses
from robustdml_ops.distributed import ShardError, shard_classes
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, ProxySGD
from tests.distributed.worlds import backward_alike, batches_of, case, close, register, sharded

# Of three processes or four the last have other numbers of classes than the first.
C, D, H = 37, 6, 3
LOSSES = {
    "proxy_anchor": partial(losses.ProxyAnchorLoss, C, D),
    "adaptive_per_proxy": partial(
        losses.AdaptiveProxyAnchorLoss, C, D, per_class=True, negative_margin="proxy", drop_similar_negatives="own"
    ),
    "proxy_nca_2017": partial(losses.ProxyNCALoss, C, D, include_positive=False, negative_correction=False),
    "normalized_softmax": partial(losses.NormalizedSoftmaxLoss, C, D),
    "cosface": partial(losses.CosFaceLoss, C, D),
    "soft_triple": partial(losses.SoftTripleLoss, C, D, H),
    "subcenter_arcface": partial(losses.SubCenterArcFaceLoss, C, D, sub_centers=H),
}
RULES = {
    "adamw": partial(ProxyAdamW, lr=0.05, weight_decay=0.1),
    "sgd": partial(ProxySGD, lr=0.05, momentum=0.9),
    "adagrad": partial(ProxyAdagrad, lr=0.05),
}


def make(name, **options):
    torch.manual_seed(1)
    return LOSSES[name](**options).double()


def batches(place, count=3):
    """Embeddings and labels of all processes; the last batch's labels are all of the first classes."""
    yield from batches_of(place, count - 1, D, C, seed=3)
    yield from batches_of(place, 1, D, 5, seed=4)


def step(place, one, many, X, labels):
    """Loss and backward of one process and of all, compared but for the gradients of parameters."""
    mine, own = X.clone().requires_grad_(), X[place.own].clone().requires_grad_()
    expected, found = one(mine, labels), many(own, labels[place.own])
    backward_alike(place, many, found, expected)
    close(own.grad, mine.grad[place.own])


def by_class(one, name, values):
    """Of one process, as it lies where classes are sharded."""
    return one.by_class(name, values) if hasattr(one, "by_class") else values


def drawn(name, reduction, share, place):
    """The draw is the same however many processes there are; some of them have no class in it."""
    one = make(name, negative_share=share, negative_seed=4, reduction=reduction)
    many = sharded(place, one)
    for X, labels in batches(place):
        step(place, one, many, X, labels)
        for (parameter_name, parameter), other in zip(one.named_parameters(), many.parameters(), strict=True):
            close(other.grad.full_tensor(), by_class(one, parameter_name, parameter.grad))
        one.zero_grad()
        many.zero_grad()
    assert many.negatives.state.tolist() == one.negatives.state.tolist() == [4, 3]
    X, labels = next(batches(place))
    close(many.eval()(X[place.own], labels[place.own]), one.eval()(X, labels)) if reduction == "mean" else None


def updated(name, rule, share, place):
    """The optimiser's step within the sweep, on each process for its own classes."""
    one = make(name, negative_share=share)
    many = sharded(place, one)
    fused, of_shards = RULES[rule](one), RULES[rule](many)
    for X, labels in batches(place):
        step(place, one, many, X, labels)
        for optimizer in (fused, of_shards):
            optimizer.step()
    one_matrix, matrix = one._class_parameter(), many._class_parameter()
    assert matrix.grad is None
    close(matrix.detach().full_tensor(), by_class(one, "", one_matrix.detach()))
    for moment in fused.moment_names:
        expected, found = fused.state[one_matrix][moment], of_shards.state[matrix][moment].full_tensor()
        close(found, expected.view(found.shape) if expected.dim() == 1 else by_class(one, "", expected))
    for parameter, other in zip(one.parameters(), many.parameters(), strict=True):
        if parameter is not one_matrix:
            close(other.grad.full_tensor(), parameter.grad)


def rounded(name, rule, dtype, place):
    """What is bfloat16 takes the random numbers of its place among all classes, on however many processes."""
    one = make(name).to(dtype)
    many = sharded(place, one)
    fused, of_shards = (MOMENTS[rule](loss, moments=torch.bfloat16) for loss in (one, many))
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        # The same gradient to the last bit: what differs then is the rounding.
        G = torch.randn(one._class_matrix().shape, generator=generator)
        for loss, optimizer in ((one, fused), (many, of_shards)):
            update, here = optimizer._steps[0], loss.shards.shard_bounds(len(G))
            update.begin(loss._class_matrix())
            update.take(0, G[slice(*here)])
            update.finish()
            update.close()
    one_matrix, matrix = one._class_parameter(), many._class_parameter()
    assert torch.equal(matrix.detach().full_tensor(), by_class(one, "", one_matrix.detach()))
    for moment in fused.moment_names:
        found = of_shards.state[matrix][moment].full_tensor()
        assert torch.equal(found, by_class(one, "", fused.state[one_matrix][moment]))


MOMENTS = {"adamw": ProxyAdamW, "sgd": partial(ProxySGD, lr=0.05, momentum=0.9)}
for _rule, _name in (("adamw", "normalized_softmax"), ("sgd", "cosface"), ("adamw", "proxy_anchor")):
    for _dtype in (torch.float32, torch.bfloat16):
        register(f"rounded_{_rule}_{_name}_{_dtype}", partial(rounded, _name, _rule, _dtype), 2, 3)


for _name in LOSSES:
    register(f"drawn_{_name}", partial(drawn, _name, "mean", 0.3))
    register(f"drawn_{_name}_few_none", partial(drawn, _name, "none", 0.03), 3)
for _place, _name in enumerate(LOSSES):
    _rule = list(RULES)[_place % 3]
    register(f"{_rule}_{_name}", partial(updated, _name, _rule, 1.0), 2, 4)
    register(f"{_rule}_{_name}_drawn", partial(updated, _name, _rule, 0.2), 1, 3, 4)
register("adamw_proxy_anchor", partial(updated, "proxy_anchor", "adamw", 1.0))
register("adagrad_soft_triple", partial(updated, "soft_triple", "adagrad", 0.2))


def state_of(loss, optimizer):
    return {"loss": loss.state_dict(), "optimizer": get_optimizer_state_dict(loss, optimizer)}


def trained(place, name="subcenter_arcface"):
    """A sharded loss and its optimiser after a step, each the same on any number of processes."""
    loss = shard_classes(make(name), place.mesh)
    optimizer = ProxyAdagrad(loss, lr=0.05) if name == "soft_triple" else ProxyAdamW(loss, lr=0.05)
    train(place, loss, optimizer)
    return loss, optimizer


def train(place, loss, optimizer):
    X, labels = next(batches(place))
    loss(X[place.own], labels[place.own]).backward()
    optimizer.step()


@case(2, 3)
def the_state_of_an_optimiser_is_saved_and_loaded(place):
    """By torch.distributed.checkpoint on as many and as the whole; training goes on as it would have."""
    for name in ("normalized_softmax", "soft_triple", "subcenter_arcface"):
        loss, optimizer = trained(place, name)
        folder = place.folder / f"optim-{place.size}-{name}"
        dcp.save(state_of(loss, optimizer), checkpoint_id=folder)
        again, other = trained(place, name)
        for key in other.moment_names:
            other.state[again._class_parameter()][key].to_local().zero_()
        for _ in range(2):
            state = state_of(again, other)
            dcp.load(state, checkpoint_id=folder)
            again.load_state_dict(state["loss"])
            set_optimizer_state_dict(again, other, state["optimizer"])
        full = get_optimizer_state_dict(loss, optimizer, options=StateDictOptions(full_state_dict=True))
        for key in other.moment_names:
            moment = optimizer.state[loss._class_parameter()][key]
            assert torch.equal(other.state[again._class_parameter()][key].to_local(), moment.to_local())
            (of_parameter,) = full["state"].values()
            assert torch.equal(of_parameter[key], moment.full_tensor())
        train(place, loss, optimizer)
        train(place, again, other)
        assert torch.equal(loss._class_parameter().to_local(), again._class_parameter().to_local())


@case(1, 3, 4)
def the_state_of_other_processes_loads(place):
    """What a world before this one has saved, of 1, 2 or 3."""
    saved_on = {1: 1, 3: 2, 4: 3}[place.size]
    folder = place.folder / f"optim-{saved_on}-soft_triple"
    if saved_on == 1:
        dcp.save(state_of(*trained(place, "soft_triple")), checkpoint_id=folder)
    loss, optimizer = trained(place, "soft_triple")
    kept = optimizer.state[loss._class_parameter()]["sum"]
    kept.to_local().zero_()
    state = {"optimizer": get_optimizer_state_dict(loss, optimizer)}
    dcp.load(state, checkpoint_id=folder)
    set_optimizer_state_dict(loss, optimizer, state["optimizer"])
    found = kept.full_tensor()
    assert found.shape == (C, H)
    assert (found > 0).all()
    if saved_on == 1:
        one = make("soft_triple")
        plain = ProxyAdagrad(one, lr=0.05)
        X, labels = next(batches(place))
        one(X, labels).backward()
        plain.step()
        close(found, plain.state[one.fc]["sum"].view(C, H))


@case(2)
def what_does_not_go_together(place):
    loss = make("proxy_anchor")
    optimizer = ProxyAdamW(loss)
    with pytest.raises(
        ValueError, match=r"an optimiser is bound to the parameters of ProxyAnchorLoss.* shard the loss first"
    ):
        shard_classes(loss, place.mesh)
    del optimizer
    loss = shard_classes(loss, place.mesh)
    optimizer = ProxyAdamW(loss)
    with pytest.raises(ValueError, match="belong to ProxyAdamW already"):
        ProxySGD(loss)
    unknown = make("proxy_anchor")
    unknown.proxies = loss.proxies
    with pytest.raises(TypeError, match=r"\.proxies of ProxyAnchorLoss is not its own tensor: it is divided already"):
        ProxySGD(unknown)
    with pytest.raises(TypeError, match="a DTensor that shard_classes has not made: after fully_shard"):
        unknown(*next(batches(place)))
    with pytest.raises(TypeError, match="divided already"):
        losses.load_class_matrix(unknown, torch.ones(C, D))
    for computed in (nn.utils.parametrizations.weight_norm(make("cosface"), "W"), prune.identity(make("cosface"), "W")):
        with pytest.raises(TypeError, match=r"\.W of \w+ is not its own tensor: weight_norm"):
            shard_classes(computed, place.mesh)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["exp_avg"] = torch.zeros(C + 1, D)
    with pytest.raises(ValueError, match=r"exp_avg to load is of shape \(38, 6\).*Nothing has been loaded"):
        optimizer.load_state_dict(state)
    state["state"][0]["exp_avg"] = torch.ones(C, D).double()
    optimizer.load_state_dict(state)
    assert (optimizer.state[loss.proxies]["exp_avg"].to_local() == 1).all()
    for options, message in (
        ({"negative_share": 0.2 if place.rank else 0.1}, "negative_share is 0.1 on rank 0 and 0.2 on rank 1"),
        ({"negative_share": 0.2, "negative_seed": place.rank}, r"negatives\.state is .*\[0, 0\].* and .*\[1, 0\]"),
    ):
        with pytest.raises(ShardError, match=message):
            shard_classes(losses.ProxyAnchorLoss(C, D, **options), place.mesh)
    centers = shard_classes(make("subcenter_arcface"), place.mesh)
    with pytest.raises(ValueError, match="get_outliers looks for the centres of all classes"):
        centers.get_outliers(torch.randn(3, D), torch.arange(3))


@case(2)
def a_gradient_of_nan_writes_nothing(place):
    """The sample of one process; all raise, and the next step is taken."""
    for name in ("proxy_anchor", "normalized_softmax"):
        loss, optimizer = trained(place, name)
        matrix = loss._class_parameter()
        before, state = matrix.to_local().detach().clone(), copy.deepcopy(optimizer.state[matrix]["exp_avg"].to_local())
        X, labels = next(batches(place))
        X[0] = torch.nan
        with pytest.raises(ValueError if place.rank == 0 else ShardError, match=r"embeddings\[0\] has NaN"):
            loss(X[place.own], labels[place.own])
        assert torch.equal(matrix.to_local(), before)
        assert torch.equal(optimizer.state[matrix]["exp_avg"].to_local(), state)
        train(place, loss, optimizer)
        assert not torch.equal(matrix.to_local(), before)


@case(2)
def a_loss_that_is_moved_and_one_before_its_step(place):
    """Neither is fatal: training goes on."""
    loss, optimizer = trained(place, "proxy_anchor")
    loss.to("cpu")
    X, labels = next(batches(place))
    loss(X[place.own], labels[place.own]).backward()
    with pytest.raises(RuntimeError, match=r"updated since the last step\(\)"):
        loss(X[place.own], labels[place.own])
    optimizer.step()
    train(place, loss, optimizer)
    loss.float()
    with pytest.raises(RuntimeError, match="make the optimiser after the loss has been moved"):
        train(place, loss, optimizer)


@case(2)
def proxies_that_are_loaded_are_looked_at(place):
    """Before backward, and where they are so short that a gradient may overflow."""
    loss, optimizer = trained(place, "normalized_softmax")
    X, labels = next(batches(place))
    value = loss(X[place.own], labels[place.own])
    loss.load_state_dict(loss.state_dict())
    with pytest.raises(RuntimeError, match="the proxies have been updated since this loss was computed"):
        value.backward()
    optimizer.abandon()
    train(place, loss, optimizer)
    loss.load_state_dict({"W": torch.full((D, C), torch.nan).double()})
    with pytest.raises((ValueError, ShardError), match="has NaN or inf"):
        train(place, loss, optimizer)


@case(2)
def none_of_a_shard_is_drawn(place):
    one = make("normalized_softmax", negative_share=0.01, drop_similar_negatives="own")
    many = sharded(place, one)
    optimizers = ProxyAdamW(one), ProxyAdamW(many)
    X, _ = next(batches(place))
    for first in (0, C - 4):  # all classes that take part are of one process
        step(place, one, many, X, torch.arange(len(X)) % 3 + first)
        for optimizer in optimizers:
            optimizer.step()
    close(many.W.detach().full_tensor(), one.W)


@case(1, 3)
def moments_of_centres_go_from_one_process_to_several_and_back(place):
    for name in ("soft_triple", "subcenter_arcface"):
        one, other = make(name), make(name)
        kind = ProxyAdagrad if name == "soft_triple" else ProxyAdamW
        of_one, of_other = kind(one), kind(other)
        X, labels = next(batches(place))
        one(X, labels).backward()
        of_one.step()
        many = sharded(place, make(name))
        of_many = kind(many)
        of_many.load_state_dict(copy.deepcopy(of_one.state_dict()))
        full = get_optimizer_state_dict(many, of_many, options=StateDictOptions(full_state_dict=True))
        (state,) = full["state"].values()
        of_other.load_state_dict({**of_one.state_dict(), "state": {0: state}})
        for moment in of_one.moment_names:
            expected = of_one.state[one._class_parameter()][moment]
            found = of_many.state[many._class_parameter()][moment].full_tensor()
            close(found, expected.view(found.shape) if expected.dim() == 1 else by_class(one, "", expected))
            close(of_other.state[other._class_parameter()][moment], expected)


@case(2, 3)
def torch_divides_the_states_of_centres_of_one_process(place):
    """By rows of D, or unevenly by centres: neither is how they lie on shards."""
    for name in ("soft_triple", "subcenter_arcface"):
        one = make(name)
        kind = ProxyAdagrad if name == "soft_triple" else ProxyAdamW
        of_one = kind(one)
        one(*next(batches(place))).backward()
        of_one.step()
        many = shard_classes(make(name), place.mesh)
        of_many = kind(many)
        whole = StateDictOptions(full_state_dict=True)
        set_model_state_dict(many, one.state_dict(), options=whole)
        set_optimizer_state_dict(many, of_many, get_optimizer_state_dict(one, of_one), options=whole)
        close(many._class_parameter().detach().full_tensor(), by_class(one, "", one._class_parameter()))
        for moment in of_one.moment_names:
            expected = of_one.state[one._class_parameter()][moment]
            found = of_many.state[many._class_parameter()][moment].full_tensor()
            close(found, expected.view(found.shape) if expected.dim() == 1 else by_class(one, "", expected))
