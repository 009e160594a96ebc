"""Proxies that begin as embeddings, on shards against one process: float64, 1e-10."""

import torch

from robustdml_ops.losses import start_class_matrix
from robustdml_ops.losses.first_steps import _nearer
from robustdml_ops.optim import ProxySGD
from tests.distributed.cases_drawn import C, D, batches, by_class, make, step
from tests.distributed.worlds import batches_of, case, close, sharded

LOSSES = ("proxy_anchor", "cosface", "soft_triple")


def alike(one, many):
    close(many._class_parameter().detach().full_tensor(), by_class(one, "", one._class_parameter().detach()))


@case(2, 3)
def begin_from_samples_of_all(place):
    for name in LOSSES:
        one = make(name)
        many = sharded(place, one)
        taken = start_class_matrix(one, batches(place), first_embeddings=2)
        found = start_class_matrix(many, ((X[place.own], y[place.own]) for X, y in batches(place)), first_embeddings=2)
        assert torch.equal(found, taken[many.shards.first : many.shards.last])
        alike(one, many)


@case(2, 3)
def begin_in_training(place):
    for name in LOSSES:
        one = make(name, negative_share=0.3, first_embeddings=2)
        many = sharded(place, one)
        optimizers = [ProxySGD(loss, lr=0.05) for loss in (one, many)]
        for X, labels in batches(place):
            step(place, one, many, X, labels)
            for optimizer in optimizers:
                optimizer.step()
        alike(one, many)
        assert torch.equal(many.taken, one.taken[many.shards.first : many.shards.last])
        saved = many.state_dict()["taken"]
        assert torch.equal(saved.full_tensor(), one.taken)
        many.load_state_dict(one.state_dict())
        assert torch.equal(many.taken, one.taken[many.shards.first : many.shards.last])


@case(2, 3)
def compare_samples_of_classes_that_are_here(place):
    """As the warning of the first steps does, on each process for itself."""
    for name in LOSSES:
        many, compared = sharded(place, make(name)), 0
        for X, labels in batches_of(place, 40, D, C, seed=3):
            start_class_matrix(many, [(X[place.own], labels[place.own])], first_embeddings=1)
            nearer, count = _nearer(many, X[place.own], labels[place.own]).tolist()
            assert 0 <= nearer <= count <= len(X[place.own])
            compared += count
        assert place.rank or compared, "some classes of the first process's samples are its own"
