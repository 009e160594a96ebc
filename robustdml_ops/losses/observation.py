"""What a loss sees of each sample, from the sweep of the step itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robustdml_ops.engine.shards import OneProcess


class Room(NamedTuple):
    """Memory for the hardest pairs of a sweep."""

    hardest: Tensor  # (2, n), out: least cosine with a positive, ∞ without any; largest with a negative, or −∞
    sharded: bool  # candidates are the shard of this process, anchors the samples of all


@dataclass
class Observation:
    """What the last call of a loss has seen of each of its samples, (B,) each, without a graph.

    :meth:`observed` of a loss makes it. Of the samples of this process; None before a call, and where the loss has no
    such number.

    Parameters
    ----------
    probability : Tensor, optional
        Of losses with a softmax over classes: that of the own class, as the logits without a margin tell it; so the
        exponential of minus the loss, if there is no margin. NaN where a sample has no class.
    margin : Tensor, optional
        Of the same: the similarity with the own class less that with the nearest other one; of sub-centres the pooled
        similarity. ∞ where there is no other class, NaN where a sample has none.
    rank : Tensor, optional
        (B,) int64, of the same: 1 + the number of classes that are nearer than the own one; 0 where a sample has none.
    hardest_positive, hardest_negative : Tensor, optional
        Of losses on pairs: the lowest cosine with a candidate of the own class, and the highest with one of another
        class, before any mining. NaN where there is none.

    Examples
    --------
    >>> import torch
    >>> from robustdml_ops.losses import ArcFaceLoss, SupConLoss
    >>> X, y, loss_function = torch.randn(8, 16, requires_grad=True), torch.arange(8) // 2, ArcFaceLoss(4, 16)
    >>> with loss_function.observed() as seen:
    ...     loss_function(X, y).backward()
    >>> easy = (seen.rank == 1) & (seen.margin > 0)
    >>> loss_function = SupConLoss()
    >>> with loss_function.observed() as seen:
    ...     loss_function(X, y).backward()
    >>> seen.hardest_negative.shape
    torch.Size([8])
    """

    probability: Tensor | None = None
    margin: Tensor | None = None
    rank: Tensor | None = None
    hardest_positive: Tensor | None = None
    hardest_negative: Tensor | None = None
    rooms: list[Room] = field(default_factory=list, init=False, repr=False)  # of the call that runs

    def begin(self) -> None:
        """Forget the call before."""
        if torch.compiler.is_compiling():
            raise RuntimeError("a compiled loss is not observed: call it without torch.compile within observed()")
        self.rooms.clear()
        for name in _NUMBERS:
            setattr(self, name, None)

    def room(self, anchors: Tensor, dtype: torch.dtype, sharded: bool = False) -> Tensor:
        """Memory (2, n) for the hardest pairs of a sweep over ``anchors`` (n, D); see :class:`Room`."""
        hardest = anchors.new_empty((2, len(anchors)), dtype=dtype, requires_grad=False)
        hardest[0], hardest[1] = torch.inf, -torch.inf
        self.rooms.append(Room(hardest, sharded))
        return hardest

    def end(self, loss_function: Any, ignored: Tensor | None) -> None:
        """Leave out samples that are ``ignored`` (B,); raise where the call has seen nothing."""
        if self.rooms:
            self._take_pairs(loss_function.shards)
        found = [name for name in _NUMBERS if getattr(self, name) is not None]
        if not found:
            raise RuntimeError(
                f"this call of {type(loss_function).__name__} was not observed: pairs that indices_tuple lists, and "
                "distances and reducers of pytorch-metric-learning that are not fused, take no sweep; leave them out"
            )
        if ignored is not None:
            for name in found:
                value, nothing = getattr(self, name), 0 if name == "rank" else torch.nan
                setattr(self, name, value.masked_fill(ignored.to(value.device), nothing))

    def _take_pairs(self, shards: OneProcess) -> None:
        """The hardest pairs of all sweeps of a call, such as over the batch and a bank."""
        sweeps = []
        for hardest, sharded in self.rooms:
            signed = hardest * hardest.new_tensor([[1.0], [-1.0]])
            sweeps.append(shards.min_over_processes(signed)[:, shards.own_slice()] if sharded else signed)
        lowest, negated = torch.stack(sweeps).amin(0)
        self.rooms.clear()
        self.hardest_positive = lowest.masked_fill(lowest == torch.inf, torch.nan)
        self.hardest_negative = -negated.masked_fill(negated == torch.inf, torch.nan)


_NUMBERS = [one.name for one in fields(Observation) if one.init]


@contextmanager
def observed(loss_function: Any) -> Iterator[Observation]:
    """Let the calls of a loss fill an :class:`Observation`."""
    if not loss_function.observable:
        raise TypeError(
            f"{type(loss_function).__name__} is not observed: losses with a softmax over classes are, and losses on "
            "pairs; of a loss that is made of others, observe those"
        )
    known, before = loss_function.__dict__, loss_function._observation
    known["_observation"] = seen = Observation()  # past __setattr__, which would drop the plans
    try:
        yield seen
    finally:
        known["_observation"] = before
