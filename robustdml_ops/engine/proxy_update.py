"""What a sweep does with the gradient of a chunk of proxies where an optimiser is bound to them.

A loss asks :func:`update_of` for its proxies and hands the answer to its op; the optimisers are in ``optim/``.
Parameters are bound by identity and weakly: a copy of a loss is not bound, and an optimiser that is gone binds nothing.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class ProxyUpdate(ABC):
    """A step of an optimiser on one parameter, taken within a sweep."""

    parameter: Tensor
    local: Tensor  # what of it is here, a leaf in plain memory: the parameter itself, or that of a DTensor
    loss_scale: float  # dL/dloss
    rows: Tensor | None = None  # (M,) int64, distinct: those that the sweep meets and steps on; None: all

    @abstractmethod
    def begin(self, proxies: Tensor, rows: Tensor | None = None) -> None:
        """Raise, before anything is written, where no step can be taken; ``proxies`` are the parameter or a view."""

    @abstractmethod
    def take(self, first: int, G: Tensor) -> None:
        """Step on the rows that the sweep met from its ``first`` on, with their gradient G (c, D), float32 or float64.

        A chunk with NaN or inf in its gradient is left as it is.
        """

    @abstractmethod
    def native(self, chunks: int) -> Any:
        """The step as the native module's sweep takes it."""

    @abstractmethod
    def finish(self) -> None:
        """The sweep is over, which has given all rows their step."""

    @abstractmethod
    def check_factor(self, upstream: Tensor) -> None:
        """Raise where the loss was multiplied with another number () than `loss_scale`."""

    @abstractmethod
    def confirm(self, upstream: Tensor | None = None) -> None:
        """Backward has come; raise where a sweep before it took another upstream gradient () for granted than this."""

    @abstractmethod
    def check_version(self, version: int) -> None:
        """Raise where the proxies are not those any more that a forward saw, of that version."""


class UpdateOfRows(ProxyUpdate):
    """A step on some rows of a parameter; the others, and what the optimiser keeps of them, stay as they are."""

    def __init__(self, update: ProxyUpdate, rows: Tensor) -> None:
        self.update, self.rows = update, rows.contiguous()
        self.parameter, self.local, self.loss_scale = update.parameter, update.local, update.loss_scale

    def begin(self, proxies: Tensor, rows: Tensor | None = None) -> None:
        """See the base class."""
        self.update.begin(proxies, self.rows)

    def take(self, first: int, G: Tensor) -> None:
        """See the base class."""
        self.update.take(first, G)

    def native(self, chunks: int) -> Any:
        """See the base class."""
        return self.update.native(chunks)

    def finish(self) -> None:
        """See the base class."""
        self.update.finish()

    def check_factor(self, upstream: Tensor) -> None:
        """See the base class."""
        self.update.check_factor(upstream)

    def confirm(self, upstream: Tensor | None = None) -> None:
        """See the base class."""
        self.update.confirm(upstream)

    def check_version(self, version: int) -> None:
        """See the base class."""
        self.update.check_version(version)


def rows_met(update: ProxyUpdate | None) -> Tensor | None:
    """Rows that a sweep meets; None: all."""
    return None if update is None else update.rows


_bound: MutableMapping[Tensor, "weakref.ref[ProxyUpdate]"] = WeakIdKeyDictionary()


def bind(update: ProxyUpdate) -> None:
    """From now on a sweep over the parameter's rows takes this step."""
    _bound[update.parameter] = weakref.ref(update)


def may_update() -> bool:
    """Whether any sweep may take a step here: asked first, as most losses have no optimiser bound.

    Under ``torch.func`` none may: its functions change no argument. A compiled graph can't be asked: the optimiser's
    ``step()`` refuses the gradient that it makes.
    """
    if torch.compiler.is_compiling() or not _bound:
        return False
    return torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()


def update_of(parameter: Tensor | None) -> ProxyUpdate | None:
    """What is bound to a parameter, where :func:`may_update` says yes."""
    if parameter is None or not may_update():
        return None
    reference = _bound.get(parameter)
    return None if reference is None or not parameter.requires_grad else reference()


def owner_of(parameter: Tensor) -> ProxyUpdate | None:
    """What is bound to the parameter, whether gradients are asked for or not."""
    reference = _bound.get(parameter)
    return None if reference is None else reference()


def refuse_update(update: ProxyUpdate | None, what: str, way_out: str) -> None:
    """Raise where an optimiser is bound and ``what`` can't do its step."""
    if update is not None:
        raise RuntimeError(f"{what} can't update the proxies within its sweep: {way_out}")
