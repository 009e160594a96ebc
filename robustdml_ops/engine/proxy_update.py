"""Optimiser steps within a sweep: an optimiser bound to the proxies takes the gradient of each chunk.

A loss calls :func:`update_of` with its proxies and passes the result to its op; the optimisers are in ``optim/``.
Parameters are bound by identity and weakly: a copy of a loss is not bound, and a deleted optimiser binds nothing.
"""

import weakref
from collections.abc import MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class ProxyUpdate(Protocol):
    """A step of an optimiser on one parameter, taken within a sweep."""

    parameter: Tensor
    local: Tensor  # a leaf in plain memory: the parameter itself, or the local shard of a DTensor
    rows: Tensor | None = None  # (M,) int64, distinct: rows of the sweep and of the step; None: all

    @property
    def loss_scale(self) -> float:
        """dL/dloss."""

    def begin(self, proxies: Tensor, rows: Tensor | None = None) -> None:
        """Raise, before anything is written, where no step can be taken; ``proxies`` are the parameter or a view."""

    def take(self, first: int, G: Tensor) -> None:
        """Update rows ``first`` to ``first + c`` of the sweep with their gradient G (c, D), float32 or float64.

        A chunk with NaN or inf in its gradient is left as it is.
        """

    def native(self, chunks: int) -> Any:
        """The step as an argument of the native module's sweep."""

    def finish(self) -> None:
        """Called after the sweep, when all rows have been updated."""

    def check_factor(self, upstream: Tensor) -> None:
        """Raise if the loss was multiplied by another number () than `loss_scale`."""

    def confirm(self, upstream: Tensor | None = None) -> None:
        """Called in backward; raise if the sweep assumed a different upstream gradient ()."""

    def check_version(self, version: int) -> None:
        """Raise if the proxies have changed since the forward, which saw this version."""


class UpdateOfRows:
    """A :class:`ProxyUpdate` of some rows of a parameter; the others, and their optimiser state, stay as they are."""

    def __init__(self, update: ProxyUpdate, rows: Tensor) -> None:
        self._begin = update.begin
        self.rows: Tensor | None = rows.contiguous()
        self.parameter, self.local, self.loss_scale = update.parameter, update.local, update.loss_scale
        self.take, self.native, self.finish = update.take, update.native, update.finish
        self.check_factor, self.confirm, self.check_version = update.check_factor, update.confirm, update.check_version

    def begin(self, proxies: Tensor, rows: Tensor | None = None) -> None:
        """Begin a step on these rows alone."""
        self._begin(proxies, self.rows)


def selected_rows(update: ProxyUpdate | None) -> Tensor | None:
    """Rows of the sweep; None: all."""
    return None if update is None else update.rows


_bound: MutableMapping[Tensor, "weakref.ref[ProxyUpdate]"] = WeakIdKeyDictionary()


def bind(update: ProxyUpdate) -> None:
    """Bind the update: sweeps over the parameter's rows call it."""
    _bound[update.parameter] = weakref.ref(update)


def may_update() -> bool:
    """Whether any sweep may take a step: checked first, as most losses have no optimiser bound.

    Not under ``torch.func``, nor in a compiled graph: there the optimiser's ``step()`` refuses the gradient.
    """
    if torch.compiler.is_compiling() or not _bound:
        return False
    return torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def update_of(parameter: Tensor | None) -> ProxyUpdate | None:
    """The update bound to a parameter, if :func:`may_update`."""
    if parameter is None or not may_update():
        return None
    reference = _bound.get(parameter)
    return None if reference is None or not parameter.requires_grad else reference()


def owner_of(parameter: Tensor) -> ProxyUpdate | None:
    """The update bound to the parameter, whether or not gradients are enabled."""
    reference = _bound.get(parameter)
    return None if reference is None else reference()


def refuse_update(update: ProxyUpdate | None, what: str, way_out: str) -> None:
    """Raise if an optimiser is bound, as ``what`` can't do its step."""
    if update is not None:
        raise RuntimeError(f"{what} can't update the proxies within its sweep: {way_out}")
