"""Optimiser steps within a sweep: an optimiser bound to the proxies takes the gradient of each chunk."""

import weakref
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor


class ProxyUpdate(Protocol):
    """A step of an optimiser on one parameter, taken within a sweep; made by ``robustdml_ops.optim.step``."""

    parameter: Tensor
    local: Tensor  # a leaf in plain memory: the parameter itself, or the local shard of a DTensor
    rows: Tensor | None = None  # (M,) int64, distinct: rows of the sweep and of the step; None: all

    check_ready: Callable[[], None]  # before anything is sent or drawn
    begin: Callable[..., None]  # in forward, with the parameter or a view of it, before anything is written
    # Update the rows of the sweep from ``first`` on with their gradient G (c, D), float32 or float64; or the step as an
    # argument of the native module's sweep of so many chunks. A chunk with NaN or inf in its gradient stays as it is.
    take: Callable[[int, Tensor], None]
    native: Callable[[int], Any]
    finish: Callable[[], None]  # all rows have been updated
    check_factor: Callable[[Tensor], None]  # in backward, as the three below
    check_confirm: Callable[[Tensor], None]
    confirm: Callable[..., None]
    version: Callable[[], int]  # of the proxies, which every write changes
    wrote_unit_rows: Callable[[Any], None]  # since that version nothing but rows of length 1 has been written
    check_version: Callable[[int], None]
    skip: Callable[[], None]  # in backward, in place of a step: the upstream gradient is NaN or inf

    @property
    def loss_scale(self) -> float:
        """dL/dloss."""

    @property
    def scaler_factor(self) -> Any:
        """The factor of a loss scaler on top of ``loss_scale``, a number or a tensor (); None without a scaler."""

    @property
    def settings(self) -> dict[str, object]:
        """Numbers and names of this step that must be equal on all processes."""


class UpdateOfRows:
    """A :class:`ProxyUpdate` of some rows of a parameter; the others, and their optimiser state, stay as they are."""

    def __init__(self, update: ProxyUpdate, rows: Tensor) -> None:
        self.rows: Tensor | None = rows.contiguous()
        self.parameter, self.local, self.loss_scale = update.parameter, update.local, update.loss_scale
        self.settings = update.settings
        self.check_ready = update.check_ready
        self.begin: Callable[..., None] = partial(update.begin, rows=self.rows)
        self.take, self.native, self.finish = update.take, update.native, update.finish
        self.check_factor, self.check_confirm, self.confirm = update.check_factor, update.check_confirm, update.confirm
        self.version, self.check_version = update.version, update.check_version
        self.scaler_factor, self.skip = update.scaler_factor, update.skip
        self.wrote_unit_rows = update.wrote_unit_rows


# By the id of the parameter, which its update keeps alive: a weak reference to it would keep ``.to()`` from moving a
# DTensor. Empty where no optimiser is bound. PyTorch's compiler does not look into it.
BOUND: MutableMapping[int, ProxyUpdate] = weakref.WeakValueDictionary()


def bind(update: ProxyUpdate) -> None:
    """Bind the update: sweeps over the parameter's rows call it."""
    BOUND[id(update.parameter)] = update


def update_of(parameter: Tensor) -> ProxyUpdate | None:
    """The update bound to a parameter that needs a gradient; None where no sweep can take a step."""
    takes = torch.is_grad_enabled() and parameter.requires_grad and not torch._C._are_functorch_transforms_active()
    return owner_of(parameter) if takes else None


def owner_of(parameter: Tensor) -> ProxyUpdate | None:
    """The update bound to the parameter, whether or not gradients are enabled."""
    return BOUND.get(id(parameter))


def refuse_update(update: ProxyUpdate | None, what: str, way_out: str) -> None:
    """Raise if an optimiser is bound, as ``what`` can't do its step."""
    if update is not None:
        raise RuntimeError(f"{what} can't update the proxies within its sweep: {way_out}")
