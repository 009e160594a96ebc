"""Steps on the classes that a loss has drawn: those of torch on their rows, and nothing else is read or written."""

import math

import pytest
import torch

from robustdml_ops.engine.proxy_update import UpdateOfRows, update_of
from robustdml_ops.losses import SubCenterArcFaceLoss
from robustdml_ops.losses.sampling import draw_classes
from robustdml_ops.ops import class_lse
from robustdml_ops.optim import ProxyAdamW, ProxySGD
from tests.optim import test_optimizers
from tests.optim.test_optimizers import DRAWN, RULES, C, D, close
from tests.storages import Storages

B = 7
LOSSES = test_optimizers.LOSSES | {"subcenter-arcface": (SubCenterArcFaceLoss, "W", {"sub_centers": 3})}


def build(name, dtype=torch.float64, **options):
    """A loss and its proxies, the same each time."""
    torch.manual_seed(0)
    kind, parameter, settings = LOSSES[name]
    loss = kind(C, D, **settings, **DRAWN, **options).to(dtype)
    return loss, getattr(loss, parameter)


def batches(steps, dtype=torch.float64, size=B):
    """Embeddings, labels, and which classes are not drawn."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        X = torch.randn(size, D, generator=generator, dtype=dtype)
        y = torch.randint(C, (size,), generator=generator)
        drawn = draw_classes(y, C, DRAWN["negative_share"], torch.tensor([DRAWN["negative_seed"], step])).classes
        yield X, y, torch.ones(C, dtype=torch.bool).index_fill(0, drawn, False).nonzero().squeeze(1)


def rows_of(P, values, classes):
    """An index into what lies as the parameter does, or is a number a row, of the rows of some classes."""
    columns, centers = P.shape[0] == D, max(P.shape) // C
    rows = (classes[:, None] * centers + torch.arange(centers)).flatten()
    return (slice(None), rows) if columns and values.dim() == 2 else (rows,)


@pytest.mark.parametrize(
    ("name", "rule", "torch_rule", "settings"),
    [*((name, *RULES[0]) for name in LOSSES), *((name, *RULES[-1]) for name in ("proxy-anchor", "subcenter-arcface"))],
)
def test_drawn_rows_take_the_step_of_torch_and_the_others_none(small_chunks, name, backend, rule, torch_rule, settings):
    """torch's optimiser steps on all rows, those that were not drawn with zeros; these are put back here."""
    (ours, P), (theirs, Q) = build(name, backend=backend), build(name, backend=backend)
    fused, plain = rule(ours, **settings), torch_rule([Q], **settings)
    for X, y, absent in batches(3):
        before = {"": Q.detach().clone()} | {key: value.clone() for key, value in plain.state[Q].items()}
        mine, other = X.clone().requires_grad_(), X.clone().requires_grad_()
        losses = ours(mine, y), theirs(other, y)
        for loss, optimizer in zip(losses, (fused, plain), strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert 10 < len(absent) < 30
        for key, value in {"": Q.detach(), **plain.state[Q]}.items():
            if value.dim():
                rows = rows_of(P, value, absent)
                value[rows] = before.get(key, torch.zeros_like(value))[rows]
        close(*losses)
        close(mine.grad, other.grad)
        close(P, Q)
        for moment in fused.moment_names:
            close(fused.state[P][moment], plain.state[Q][moment])


@pytest.mark.parametrize("name", ["proxy-anchor", "normalized-softmax"])
def test_rows_that_were_not_drawn_are_neither_read_nor_written(small_chunks, name, backend):
    """NaN in them, and in what is kept of them, is seen by nobody and stays."""
    loss, P = build(name, backend=backend)
    optimizer = ProxyAdamW(loss, lr=0.1)
    for step, (X, y, absent) in enumerate(batches(3)):
        if step:
            whole = [P.detach(), *(optimizer.state[P][moment] for moment in optimizer.moment_names)]
            kept = [value[rows_of(P, value, absent)].clone() for value in whole]
            for value in whole:
                # Through NumPy, so that nobody is told of a change.
                value.numpy()[tuple(i if isinstance(i, slice) else i.numpy() for i in rows_of(P, value, absent))] = (
                    math.nan
                )
        X.requires_grad_()
        loss(X, y).backward()
        optimizer.step()
        assert X.grad.isfinite().all()
        if step:
            for value, before in zip(whole, kept, strict=True):
                rows = rows_of(P, value, absent)
                assert value[rows].isnan().all()
                value.numpy()[tuple(i if isinstance(i, slice) else i.numpy() for i in rows)] = before.numpy()
                assert value.isfinite().all()


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", LOSSES)
def test_the_rows_drawn_are_not_copied(small_chunks, name):
    """But for a chunk at a time, by the lanes themselves."""
    loss, P = build(name, backend="native", dtype=torch.float32)
    optimizer = ProxyAdamW(loss)
    first, second = batches(2, torch.float32, size=2)
    loss(*first[:2]).backward()  # which looks at the values of all proxies
    optimizer.step()
    X, y, absent = second
    with Storages([P, *optimizer.state[P].values()]) as storages:
        loss(X, y).backward()
        optimizer.step()
    assert 0 < storages.largest < (C - len(absent)) * P.nbytes // C


def test_an_empty_batch_is_a_step_of_zeros_on_what_was_drawn(small_chunks):
    loss, P = build("proxy-anchor")
    optimizer = ProxyAdamW(loss, lr=0.1, weight_decay=0.5)
    before = P.detach().clone()
    for X, y, absent in batches(1, size=0):
        loss(X, y).backward()
        optimizer.step()
        drawn = torch.ones_like(P.detach()).index_fill(0, absent, 0)
        close(P, before * (1 - 0.05 * drawn))


def test_a_receiver_beside_an_optimiser_is_refused():
    loss, P = build("normalized-softmax")
    _optimizer, before = ProxyAdamW(loss), P.detach().clone()
    loss.negatives.receiver = lambda rows, gradient: None
    X, y, _ = next(batches(1))
    with pytest.raises(RuntimeError, match=r"have a receiver can't update .* set negatives\.receiver to None"):
        loss(X, y)
    assert torch.equal(P, before)


@pytest.mark.parametrize("row", [-1, C])
def test_rows_out_of_range_are_named(row):
    loss, P = build("normalized-softmax")
    _optimizer = ProxySGD(loss)
    update = UpdateOfRows(update_of(P), torch.tensor([3, row]))
    with pytest.raises(IndexError, match=rf"rows\[1\] = {row} is outside 0 … {C - 1}"):
        class_lse(torch.randn(1, D).double(), P.t(), torch.tensor([0]), update=update)
