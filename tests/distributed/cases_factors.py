"""Every loss has the gradients of one process, however its step is divided: DDP, accumulation, micro-batches."""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from robustdml_ops import backward_in_micro_batches, losses
from robustdml_ops.distributed import shard_classes
from tests.distributed.cases_losses import LOSSES, Batch, D, make
from tests.distributed.cases_pairs import PAIRS, PairBatch
from tests.distributed.worlds import NIGHTLY, case, close, register


class TowerBatch(Batch):
    """Pairs of two towers, the second of which is the first one's embeddings, turned."""

    def loss(self, loss):
        return loss(self.X, self.X.flip(1), sample_weights=self.weights.detach())


TOWERS = {
    "info_nce": losses.InfoNCELoss,
    "rince": partial(losses.InfoNCELoss, 0.3, q=0.5),
    "sigmoid": losses.SigmoidLoss,
}


def made(name):
    """A loss, and the class of its batches."""
    torch.manual_seed(1)
    if name in LOSSES:
        return make(name), Batch
    return (PAIRS | TOWERS)[name]().double(), PairBatch if name in PAIRS else TowerBatch


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(D, 7), nn.Tanh(), nn.Linear(7, D)).double()


def of_batch(batch, loss, embeddings):
    batch.X = embeddings
    return batch.loss(loss)


def once(wrapped, loss, batch, inputs):
    of_batch(batch, loss, wrapped(inputs)).backward()


def twice(wrapped, loss, batch, inputs):
    for _ in range(2):
        once(wrapped, loss, batch, inputs)


def twice_with_one_reduction(wrapped, loss, batch, inputs):
    with wrapped.no_sync():
        once(wrapped, loss, batch, inputs)
    once(wrapped, loss, batch, inputs)


def by_micro_batches(wrapped, loss, batch, inputs):
    backward_in_micro_batches(partial(of_batch, batch, loss), (wrapped, inputs), micro_batch=2)


Step = Callable[..., None]
# How a step goes on several processes, and on one.
WAYS: dict[str, tuple[Step, Step]] = {
    "ddp": (once, once),
    "accumulated": (twice, twice),
    "no_sync": (twice_with_one_reduction, twice),
    "micro_batches": (by_micro_batches, once),
}


def compare(place, name, way, *, shard=shard_classes, step=None):
    """All gradients of a step that is divided, beside those of one process with the whole batch."""
    (one, kind), alone, (divided, whole) = made(name), network(), WAYS[way]
    many, wrapped = shard(copy.deepcopy(one), place.mesh), DistributedDataParallel(network())
    mine, own = (kind(place, part, name, True) for part in (slice(None), place.own))
    if name == "memory_contrastive":  # a bank that needs no gradient
        mine.weights, own.weights = mine.weights.detach(), own.weights.detach()
    inputs = mine.X.detach()
    whole(alone, one, mine, inputs)
    (step or divided)(wrapped, many, own, inputs[place.own])
    for parameter, other in zip(alone.parameters(), wrapped.parameters(), strict=True):
        close(other.grad, parameter.grad)
    for (label, parameter), other in zip(one.named_parameters(), many.parameters(), strict=True):
        expected = one.by_class(label, parameter.grad) if hasattr(one, "by_class") else parameter.grad
        close(other.grad.full_tensor() if hasattr(other.grad, "full_tensor") else other.grad, expected)
    assert any(parameter.grad.abs().max() > 0 for parameter in alone.parameters())


def of_loss(name, place):
    """By all ways."""
    for way in WAYS:
        compare(place, name, way)


SHORT = {"normalized_softmax", "proxy_anchor", "supcon", "memory_contrastive", "sigmoid"}
for _name in (*LOSSES, *PAIRS, *TOWERS):
    register(_name, partial(of_loss, _name), 1, 2, 3)
    NIGHTLY.update((size, f"factors.{_name}") for size in (1, 2, 3) if size != 2 or _name not in SHORT)


def without_the_others_gradient(loss, mesh):
    """Embeddings of other processes arrive as constants."""
    many = shard_classes(loss, mesh)
    gather = many.shards.gather
    many.shards.gather = lambda values, *more: None if values is None else gather(values.detach(), *more)
    return many


def redrawn(wrapped, loss, batch, inputs):
    """Dropout masks are drawn anew for the second pass."""
    noisy = DistributedDataParallel(nn.Sequential(wrapped.module, Redrawn()))
    backward_in_micro_batches(partial(of_batch, batch, loss), (noisy, inputs), micro_batch=2)


class Redrawn(nn.Module):
    """Leaves out elements by a generator of its own."""

    generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return x * (torch.rand(x.shape, generator=self.generator) < 0.5)


FAULTS = {
    "a factor 1/world": {"shard": partial(shard_classes, backbone_gradients="summed")},
    "summed twice": {"step": twice},
    "dropout redrawn": {"way": "micro_batches", "step": redrawn},
    "gathered without gradient": {"shard": without_the_others_gradient},
}


@case(2)
def faults_are_seen(place):
    """Each planted fault of a kind that users of others met fails the comparison."""
    for fault, changed in FAULTS.items():
        try:
            compare(place, "supcon", **{"way": "ddp", **changed})
        except (AssertionError, RuntimeError):
            continue
        raise AssertionError(f"{fault}: not seen")
