"""What a loss sees of each sample, from the sweep of the step itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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

    def begin(self) -> None:
        """Forget the call before."""
        if torch.compiler.is_compiling():
            raise RuntimeError("a compiled loss is not observed: call it without torch.compile within observed()")
        for name in vars(self):
            setattr(self, name, None)

    def end(self, loss_function: Any, ignored: Tensor | None) -> None:
        """Leave out samples that are ``ignored`` (B,); raise where the call has seen nothing."""
        found = [name for name, value in vars(self).items() if value is not None]
        if not found:
            raise RuntimeError(
                f"this call of {type(loss_function).__name__} was not observed: pairs that indices_tuple lists, and "
                "distances and reducers of pytorch-metric-learning that are not fused, take no sweep; leave them out"
            )
        for name in found if ignored is not None else ():
            nothing = 0 if name == "rank" else torch.nan
            setattr(self, name, getattr(self, name).masked_fill(ignored.to(getattr(self, name).device), nothing))


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
