"""Classes that are added, dropped and reordered on shards: as on one process."""

from functools import partial

import pytest
import torch

from robustdml_ops.distributed import ShardError
from robustdml_ops.optim import grow_classes
from robustdml_ops.robust import PRISM
from tests.distributed.worlds import batches_of, case, register, sharded
from tests.optim.test_grow_classes import LOSSES, OLD, OPTIMIZERS, ORIGIN, D

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def grown(name, kind, place):
    torch.manual_seed(0)
    one = LOSSES[name](OLD).double()
    many = sharded(place, one)
    of_one, of_many = OPTIMIZERS[kind](one), OPTIMIZERS[kind](many)
    for seed, classes in enumerate((ORIGIN, OLD + 3, OLD)):
        number = classes if isinstance(classes, int) else len(classes)
        new = int((ORIGIN < 0).sum()) if seed == 0 else max(0, number - one.num_classes)
        shape = (new, D) if one.centers is None else (new, one.centers, D)
        init = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for loss, optimizer in ((one, of_one), (many, of_many)):
            grow_classes(loss, optimizer, classes, init=init)
        for X, labels in batches_of(place, 2, D, number, seed):
            found, expected = many(X[place.own], labels[place.own]), one(X, labels)
            for optimizer, value in ((of_one, expected), (of_many, found)):
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
            close(found, expected)
        for (key, parameter), other in zip(one.named_parameters(), many.parameters(), strict=True):
            whole = one.by_class(key, parameter) if hasattr(one, "by_class") else parameter
            close(other.full_tensor(), whole)


for _name in sorted(LOSSES.keys() - {"sampled"}):  # whose draws go by process
    for _kind in OPTIMIZERS if _name != "margins" else ("torch",):
        sizes = (3,) if (_name, _kind) in {("columns", "torch"), ("centres", "adagrad"), ("margins", "torch")} else (4,)
        register(f"{_name}_{_kind}", partial(grown, _name, _kind), *sizes)


@case(3)
def a_filter(place):
    one = PRISM(OLD, D, "vmf", 0.3, memory_size=40, vmf_start=1).double()
    many = sharded(place, one)
    for seed, classes in enumerate((OLD, ORIGIN, OLD + 3)):
        for filter_ in (one, many):
            grow_classes(filter_, None, classes)
        for X, labels in batches_of(place, 2, D, one.num_classes, seed):
            found, expected = many(X[place.own], labels[place.own]), one(X, labels)
            close(found.log_p_clean, expected.log_p_clean[place.own], equal_nan=True)


@case(3)
def means_of_embeddings(place):
    torch.manual_seed(0)
    one = LOSSES["columns"](OLD).double()
    many = sharded(place, one)
    init = (torch.randn(7, D, dtype=torch.float64), torch.tensor([3, 6, 6, 3, 3, 6, 6]))
    for loss in (one, many):
        grow_classes(loss, None, ORIGIN, init=init)
    close(many.W.full_tensor(), one.W)


@case(2)
def other_arguments(place):
    many = sharded(place, LOSSES["proxy-anchor"](OLD))
    for classes, init in (
        (OLD + place.rank, None),
        (OLD + 1, torch.full((1, D), float(place.rank))),
        (OLD + 1, (torch.full((1, D), float(place.rank)), torch.tensor([OLD]))),
    ):
        with pytest.raises(ShardError, match="of grow_classes"):
            grow_classes(many, None, classes, init=init)
    with pytest.raises(ValueError, match="1 classes are fewer than the 2 processes"):
        grow_classes(many, None, 1)
