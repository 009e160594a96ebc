"""Where losses and filters need other processes: the seams, and what stands in them where there is one process.

With very many classes each process has a part of them, and its own part of the batch. A loss or filter does then what
it always does, on the batch of all and the classes that are here; at the few places below its result is a part, and the
processes complete it. ``robustdml_ops.distributed`` puts its ``ClassShards`` in the place of :class:`OneProcess`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class OneProcess:
    """All classes and the whole batch are here: every seam gives back what it is given."""

    divided: bool = False  # whether other processes have classes, too

    def agree(self, check: Callable[[], dict[str, Tensor | None]], settings: Mapping[str, object]) -> dict[str, Any]:
        """What ``check`` gives of own input, rows of samples; raises on all processes if it raises on one of them."""
        return check()

    def guard(self, function: Callable[..., T], *arguments: Any) -> T:
        """What a function gives that uses the seams; where it raises, the other processes are told."""
        return function(*arguments)

    def gather(self, rows: Tensor | None, of_parts: bool = True) -> Tensor | None:
        """Rows of the samples of all processes, after an agreement; differentiable where they are floating point.

        ``of_parts``: each process uses them for its part of the loss; False: for what all of them have.
        """
        return rows

    def rows(self, parameter: Tensor) -> Tensor:
        """The classes of a parameter that are here, plain memory; differentiable."""
        return parameter

    def has_part(self, values: Tensor | None) -> bool:
        """Whether these are rows divided among the processes: :meth:`rows` gives those that are here."""
        return False

    def given(self, values: Tensor) -> Tensor:
        """The classes that are here of values for all of them, or of a DTensor of such; plain memory."""
        return values

    def range(self) -> tuple[int, int] | None:
        """The first class that is here, and the first behind them; None: all are."""
        return None

    def part(self, rows: int) -> tuple[int, int]:
        """Of so many rows that are divided, the first that is here, and the first behind them."""
        return 0, rows

    def chunks(self, values: tuple[Tensor, ...], rows: int, most: int) -> Iterator[tuple[Tensor, ...]]:
        """All of ``rows`` that are divided, of which ``values`` has those here; so many at a time at most."""
        return zip(*(torch.split(value, most) for value in values), strict=True)

    def here(self, labels: Tensor) -> Tensor:
        """Which labels' classes are here, (B,) bool."""
        return torch.ones_like(labels, dtype=torch.bool)

    def labels(self, labels: Tensor) -> Tensor:
        """Labels (B,) counted from the first class that is here, ``ELSEWHERE`` for those of other processes."""
        return labels

    def total(self, part: Tensor) -> Tensor:
        """What all parts of the loss sum to, (). All processes then call backward with the same upstream gradient."""
        return part

    def count(self, part: Tensor) -> Tensor:
        """What all parts of a number sum to; no gradient."""
        return part

    def least(self, part: Tensor) -> Tensor:
        """The least of all parts; no gradient."""
        return part

    def log_sum_exp(self, lse: Tensor, target: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Log-sum-exps over all classes and logits of the labels, (B,) each, from those of the classes here."""
        return lse, target

    def log_one_plus(self, lse: Tensor) -> Tensor:
        """log(1 + Σ) of the sums of all, from log(1 + part). All then call backward with the same upstream gradient."""
        return lse

    def of_labels(self, values: Tensor, labels: Tensor) -> Tensor:
        """Entry of each label (B,) in ``values``, one for each class here; each process uses it for its part."""
        return values[labels]

    def at_labels(self, values: Tensor, labels: Tensor) -> Tensor:
        """Rows (B, …) of ``values``, one for each class here, of the labels' classes; 0 where they are not here."""
        return values.index_select(0, labels)

    def from_owners(self, values: Tensor, labels: Tensor) -> Tensor:
        """Values (B,) as the process of each label's class has them; no gradient."""
        return values

    def whole(self, values: Tensor) -> Tensor:
        """Values of all classes, from those of the classes here; no gradient."""
        return values

    def common(self, value: Tensor) -> Tensor:
        """A value that all processes have and use for their parts of the loss: its gradient is the sum of theirs."""
        return value

    def place(self) -> slice:
        """Where the samples of this process are in the batch."""
        return slice(None)

    def own(self, values: Tensor) -> Tensor:
        """Entries of the samples of this process, of one for each sample of the batch."""
        return values


ONE_PROCESS = OneProcess()


def settings_of(module: nn.Module) -> dict[str, object]:
    """Numbers and names that a module was made with, and what it trains: what must be the same on all processes."""
    plain = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and (value is None or isinstance(value, (bool, int, float, str)))
    }
    trained = {
        f"requires_grad of {name}": value.requires_grad for name, value in module.named_parameters(recurse=False)
    }
    return {"the class": type(module).__name__, **plain, **trained}
