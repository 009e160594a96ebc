"""Network, loss and filter as one module within DistributedDataParallel, as trainers like Lightning's have them."""

import copy
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from robustdml_ops.distributed import leave_out_of_ddp, shard_classes
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.optim import ProxyAdamW
from robustdml_ops.robust import PRISM, BalancedSelfPaced, MemoryBank
from tests.distributed.cases_prism import same_state
from tests.distributed.cases_training import assert_trained_alike, batches, network
from tests.distributed.worlds import CLASSES, case, register

C, D = CLASSES, 6


class OneModule(nn.Module):
    """A step of training is its forward."""

    def __init__(self):
        super().__init__()
        self.network, self.loss = network(), ProxyAnchorLoss(C, D).double()
        self.prism = PRISM(C, D, noise_rate=0.3, memory_size=20, memory_dtype=torch.float64)

    def forward(self, inputs, labels):
        embeddings = self.network(inputs)
        result = self.prism(embeddings, labels)
        self.prism.enqueue(embeddings, labels, result.keep)
        return self.loss(embeddings, labels, sample_weights=result.keep.double())


def shard(model, place):
    shard_classes(model.loss, place.mesh)
    shard_classes(model.prism, place.mesh)
    return model


def train(place, model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    for inputs, labels in batches(place):
        optimizer.zero_grad()
        model(inputs[rows], labels[rows]).backward()
        optimizer.step()


def trained(wrap, place):
    torch.manual_seed(0)
    one = OneModule()
    many = shard(copy.deepcopy(one), place)
    train(place, one, slice(None))
    train(place, wrap(many, place), place.own)
    assert_trained_alike(one.loss, many.loss, one.network, many.network)
    same_state(one.prism, many.prism)


register("ddp", partial(trained, lambda model, _: DistributedDataParallel(leave_out_of_ddp(model))), 2, 3)
if torch.__version__ >= "2.7":  # compared as versions; the fully_shard of 2.6 needs a GPU's streams
    register("fsdp2", partial(trained, lambda model, place: fully_shard(model, mesh=place.mesh)), 2, 3)

    @case(2)
    def what_fully_shard_has_is_not_sharded_again(place):
        model = fully_shard(OneModule(), mesh=place.mesh)
        with pytest.raises(ValueError, match=r"as fully_shard makes them: call shard_classes on the loss first"):
            shard_classes(model.loss, place.mesh)


@case(2)
def what_the_old_fsdp_has_is_left_to_it(place):
    for original in (True, False):
        wrapped = FullyShardedDataParallel(OneModule(), device_id=torch.device("cpu"), use_orig_params=original)
        for call in (ProxyAdamW, shard_classes):
            with pytest.raises(TypeError, match=r"\.proxies of ProxyAnchorLoss is not its own tensor: .*FSDP"):
                call(wrapped.loss)


@case(2)
def a_divided_bank_is_not_overwritten(place):
    model = shard(OneModule(), place)
    # PyTorch's own refusal to copy it, which up to 2.6 speaks of shapes.
    with pytest.raises(RuntimeError, match=r"DTensor|sharded|invalid for input of size"):
        DistributedDataParallel(model)


@case(2)
def divided_classes_are_not_overwritten(place):
    """Rings of scores by class are plain memory, which DDP does copy."""

    class Judges(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.proxies = network(), torch.randn(8, D, dtype=torch.float64)
            self.prism = PRISM(8, D, "proxy", noise_rate=0.3, threshold="per-class", window=3)

        def forward(self, inputs, labels):
            return self.prism(self.network(inputs), labels, proxies=self.proxies)

    model = Judges()  # 8 classes, the same number for each: else making DDP ends the processes
    shard_classes(model.prism, place.mesh)
    wrapped = DistributedDataParallel(model)
    inputs, labels = next(batches(place))
    with pytest.raises(RuntimeError, match="leave_out_of_ddp"):
        wrapped(inputs, labels.clamp(max=7))


@case(2)
def a_memory_that_forgets_is_told_once(place):
    """And not where each process keeps its own."""
    for broadcast, times in ((True, 1), (False, 0)):
        wrapped = DistributedDataParallel(OneModule(), broadcast_buffers=broadcast)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for inputs, labels in batches(place):
                wrapped(inputs, labels).backward()
        told = [str(warning.message) for warning in caught if "broadcast_buffers=False" in str(warning.message)]
        assert len(told) == times


class Remembers(nn.Module):
    """A memory, and something to train, without which DDP is not made."""

    def __init__(self, memory, remember):
        super().__init__()
        self.network, self.memory, self.remember = network(), memory, remember

    def forward(self, inputs):
        embeddings = self.network(inputs)
        self.remember(self.memory, embeddings)
        return embeddings


@case(2)
def other_memories_tell_as_well(place):
    def enqueue(bank, embeddings):
        bank.enqueue(embeddings, torch.zeros(len(embeddings), dtype=torch.int64))

    def observe(weights, embeddings):
        weights.observe(embeddings, torch.arange(len(embeddings)))

    inputs = next(batches(place))[0]
    bank, weights = MemoryBank(C, D, 20, torch.float64), BalancedSelfPaced(torch.arange(len(inputs)) // 2)
    for memory, remember in ((bank, enqueue), (weights, observe)):
        with pytest.warns(UserWarning, match=f"{type(memory).__name__} is within DistributedDataParallel"):
            DistributedDataParallel(Remembers(memory, remember))(inputs)


@case(2)
def proxies_with_an_optimiser_of_ours_are_not_for_ddp(place):
    model = OneModule()
    optimizer = ProxyAdamW(model.loss)
    wrapped = DistributedDataParallel(model, broadcast_buffers=False)
    with pytest.raises(RuntimeError, match="DistributedDataParallel"):
        wrapped(*(rows[place.own] for rows in next(batches(place)))).backward()
    optimizer.abandon()
