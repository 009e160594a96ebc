"""Proxies that begin as embeddings, on shards against one process: float64, 1e-10."""

import torch

from robustdml_ops.distributed import shard_classes
from robustdml_ops.losses import AdaFaceLoss, start_class_matrix
from robustdml_ops.losses.first_steps import _nearer
from robustdml_ops.optim import ProxyAdagrad, ProxySGD
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


@case(2)
def many_identities(place):
    """What docs/large-classes.md puts together: from the meta device to a checkpoint that another loss goes on with."""

    def made():
        with torch.device("meta"):
            loss = AdaFaceLoss(40, D, negative_share=0.3, negative_seed=5, first_embeddings=1, dtype=torch.bfloat16)
        loss = shard_classes(loss, place.mesh)
        return loss, ProxyAdagrad(loss, lr=0.1, radians=True)

    (loss, proxies), (again, optimizer) = made(), made()
    assert (loss.negatives.state.tolist(), float(loss.mean_length)) == ([5, 0], 20)
    assert loss.W.to_local().shape == (D, 20) and loss.W.dtype == torch.bfloat16
    means = torch.randn(40, D, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(0, 40, 5)  # of both shards, on both processes
    for _ in range(4):
        X = (means[labels] + 0.01 * torch.randn(8, D)).requires_grad_()
        loss(X, labels).backward()
        proxies.step()
    found = loss.W.full_tensor().t().float()[labels]
    assert (torch.nn.functional.cosine_similarity(found, means[labels]) > 0.9).all()
    again.load_state_dict(loss.state_dict())
    optimizer.load_state_dict(proxies.state_dict())
    assert torch.equal(*(one.eval()(X, labels) for one in (loss, again)))
