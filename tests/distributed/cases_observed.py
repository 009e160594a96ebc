"""What a step has seen of own samples on shards, against one process that has all."""

from contextlib import nullcontext

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.distributed import ShardError
from tests.distributed.cases_factors import TOWERS, TowerBatch
from tests.distributed.cases_losses import LOSSES, Batch, D, make
from tests.distributed.cases_pairs import PAIRS, WITH_BANKS, PairBatch, banks_of
from tests.distributed.worlds import NIGHTLY, case, close, sharded

NUMBERS = ("probability", "margin", "rank", "hardest_positive", "hardest_negative")
CLASSES = [name for name in LOSSES if not name.startswith(("adaptive", "smooth")) and "proxy_anchor" not in name]


def observe(loss, call):
    with loss.observed() as seen:
        call(loss)
    return seen


def compare(place, seen, whole):
    for name in NUMBERS:
        found, value = getattr(seen, name), getattr(whole, name)
        if value is None:
            assert found is None, name
        else:
            assert (found.isnan() == value[place.own].isnan()).all(), name
            close(found.double().nan_to_num(0, 9, -9), value[place.own].double().nan_to_num(0, 9, -9))


def of_batches(place, loss, kind, name):
    """The same batch, of all processes and of this one."""
    mine, own = (kind(place, part, name, False) for part in (slice(None), place.own))
    compare(place, observe(sharded(place, loss), own.loss), observe(loss, mine.loss))


@case()
def classes(place):
    """Some processes have no sample, and the last one may have no class."""
    for name in CLASSES:
        of_batches(place, make(name), Batch, name)


@case()
def pairs(place):
    """Candidates are those of all processes."""
    for name, kind in PAIRS.items():
        of_batches(place, kind(), PairBatch, name)
    for name, kind in TOWERS.items():
        loss = kind().double()
        mine, own = (TowerBatch(place, part, name, True) for part in (slice(None), place.own))
        compare(place, observe(sharded(place, loss), own.loss), observe(loss, mine.loss))


@case()
def banks_whose_slots_are_divided(place):
    """The hardest of the slots of all processes."""
    one, many = banks_of(place, 17)
    for kind in WITH_BANKS.values():
        mine, own = (PairBatch(place, part, "", False) for part in (slice(None), place.own))
        whole = observe(kind(), lambda loss, b=mine: loss(b.X, b.target, None, one.features, one.labels))
        seen = observe(
            sharded(place, kind()), lambda loss, b=own: loss(b.X, b.target, None, many.features, many.labels)
        )
        compare(place, seen, whole)


@case(2)
def all_processes_observe_or_none(place):
    """Otherwise they would wait for each other's numbers."""
    loss = sharded(place, losses.NormalizedSoftmaxLoss(4, D))
    X, labels = torch.randn(3, D), torch.arange(3)
    with pytest.raises(ShardError, match="that it is observed"), loss.observed() if place.rank == 0 else nullcontext():
        loss(X, labels)


NIGHTLY.update((size, f"observed.{name}") for size in (1, 3) for name in ("classes", "pairs"))
