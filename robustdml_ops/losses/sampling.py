"""Sampled negatives: in each step a loss takes the classes of its batch and a random sample of the others."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robustdml_ops.engine.labels import ABSENT, ELSEWHERE, check_label_range
from robustdml_ops.engine.proxy_update import ProxyUpdate, UpdateOfRows, refuse_update
from robustdml_ops.engine.random_words import FIRST, GOLDEN, mix_bits
from robustdml_ops.engine.rows.backends import by_columns, gradient_buffer, rows_at
from robustdml_ops.engine.shards import ShownSettings
from robustdml_ops.engine.validation import check_number, check_sizes

# Takes rows (n,) int64, distinct, and dL/drows (n, D) in the type of the matrix.
Receiver = Callable[[Tensor, Tensor], None]


class Drawn(NamedTuple):
    """M distinct classes of this shard: the first ``certain`` of the whole draw count once, others ``weight`` times."""

    classes: Tensor  # (M,) int64, counted from the first class of the shard
    labels: Tensor  # (B,) or (B, K) int64: place of each sample's class among them, or ELSEWHERE
    places: Tensor  # (M,) int64: place of each class in the draw of all shards
    certain: int  # the batch's classes, and others up to the size of the batch
    weight: float  # ≥ 1; 1 where all classes take part

    def weights(self, dtype: torch.dtype) -> Tensor:
        """Number of classes that each of them represents, (M,)."""
        one = torch.ones((), dtype=dtype, device=self.classes.device)
        return torch.where(self.places < self.certain, one, self.weight * one)


class Negatives(ShownSettings, nn.Module):
    """Draws the classes of each step, and remembers which step it is."""

    state: Tensor
    shown = ("share",)

    def __init__(self, share: float, seed: int = 0) -> None:
        super().__init__()
        self._ratio = share.as_integer_ratio()  # PyTorch's compiler takes floats of a module for variables
        self._seed = seed
        for name, value in self.initial_buffers().items():
            self.register_buffer(name, value)
        self.receiver: Receiver | None = None

    def initial_buffers(self) -> dict[str, Tensor]:
        """Values that buffers begin with, which the meta device does not hold."""
        return {"state": torch.tensor([self._seed, 0])}

    @property
    def share(self) -> float:
        """Of the classes outside the batch."""
        return self._ratio[0] / self._ratio[1]

    def draw(self, labels: Tensor, num_classes: int, here: tuple[int, int] | None = None) -> Drawn:
        """Draw the classes of the next step; labels (B,), or (B, K) with ABSENT."""
        if labels.dim() == 2:
            absent = labels == ABSENT  # draws another class of its sample
            known = torch.where(absent, labels.amax(1, keepdim=True).clamp(min=0), labels).flatten()
            classes, of_labels, places, certain, weight = self.draw(known, num_classes, here)
            of_labels = of_labels.view_as(labels).masked_fill(absent, ABSENT)
            return Drawn(classes, of_labels, places, certain, weight)
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            raise RuntimeError(
                "torch.utils.checkpoint runs the loss again in the backward pass, where it would draw other negatives: "
                "leave the loss out of the checkpoint, or negative_share out of the loss"
            )
        check_label_range(labels, num_classes)
        drawn = draw_classes(labels, num_classes, self.share, self.state, here)
        with torch.no_grad():
            self.state[1] += 1
        return drawn

    def rows(self, proxies: Tensor, drawn: Drawn, update: ProxyUpdate | None) -> tuple[Tensor, ProxyUpdate | None]:
        """Rows of the drawn classes; with an update all rows, and an update of the drawn ones."""
        rows = drawn.classes
        if proxies.dim() == 3:
            H = proxies.shape[1]
            rows = (rows[:, None] * H + torch.arange(H, device=rows.device)).flatten()
        if update is not None:
            if self.receiver is not None:
                refuse_update(update, "a loss whose negatives have a receiver", "set negatives.receiver to None")
            return proxies, UpdateOfRows(update, rows)
        if proxies.dim() == 2:
            return take_rows(proxies, rows, self.receiver), None
        return take_rows(proxies.flatten(0, 1), rows, self.receiver).view(-1, *proxies.shape[1:]), None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        state_dict.setdefault(f"{prefix}state", self.state)
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def negatives_of(options: Any) -> Negatives | None:
    """Take ``negative_share`` and ``negative_seed`` out of a loss's dictionary of options; None: all classes."""
    share, seed = options.pop("negative_share", 1.0), options.pop("negative_seed", 0)
    check_number("negative_share", share)
    if not 0 < share <= 1:
        raise ValueError(f"negative_share must lie in (0, 1], got {share}: 1 takes all classes")
    check_sizes(0, negative_seed=seed)
    if seed >= 2**63:
        raise ValueError(f"negative_seed must be below 2^63, got {seed}")
    return None if share == 1 else Negatives(float(share), int(seed))


def take_rows(matrix: Tensor, rows: Tensor, receiver: Receiver | None = None) -> Tensor:
    """Distinct rows (n, D) of a matrix (C, D); a ``receiver`` gets their gradient in place of the matrix."""
    taken: Tensor = TakenRows.apply(matrix, rows, receiver)  # type: ignore[no-untyped-call]
    return taken


class TakenRows(torch.autograd.Function):
    """Autograd of :func:`take_rows`."""

    @staticmethod
    def forward(matrix: Tensor, rows: Tensor, receiver: Receiver | None) -> Tensor:
        """Of a matrix (C, D)."""
        return rows_at(matrix, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the rows, and the matrix for its layout."""
        ctx.save_for_backward(*inputs[:2])
        ctx.receiver = inputs[2]

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, None, None]:
        """The dense gradient, or none."""
        matrix, rows = ctx.saved_tensors
        if ctx.receiver is not None:
            if torch.is_grad_enabled():
                raise RuntimeError("a receiver's rows have no second derivative: leave create_graph=True out")
            ctx.receiver(rows, G)
            return None, None, None
        if torch.is_grad_enabled():  # a graph of the gradient
            return torch.zeros_like(matrix).index_copy(0, rows, G), None, None
        buffer = gradient_buffer(matrix).zero_()
        if by_columns(matrix):
            buffer.t().index_copy_(1, rows, G.t())
        else:
            buffer.index_copy_(0, rows, G)
        return buffer, None, None


def draw_classes(
    labels: Tensor, num_classes: int, share: float, state: Tensor, here: tuple[int, int] | None = None
) -> Drawn:
    """Draw the classes of a step, restricted to the range ``here`` of a shard; a pure function of its arguments."""
    # The classes outside the batch form a circle, cut into intervals. One class is drawn from each interval, and one
    # random number turns them all: every class has the same probability, none is drawn twice. The first draws fill the
    # batch's classes up to ``certain``. A class outside the batch is among these with probability p and counts once, or
    # is drawn later with probability (1 − p)/weight and counts ``weight`` times: once on average, for every p.
    certain = min(len(labels), num_classes)
    drawn = max(1, round(share * (num_classes - certain))) if certain < num_classes else 0
    circle = _Circle(labels, num_classes, certain + drawn, state)
    weight = (num_classes - certain) / drawn if drawn else 1.0
    if here is None:
        places = torch.arange(certain + drawn + 1, device=labels.device)
        slots, picked = places[:-1], circle.picked(places)
        first = torch.where(slots[:certain] < circle.present, circle.batch[:certain], picked[:certain])
        return Drawn(torch.cat([first, picked[certain:]]), circle.labels, slots, certain, weight)
    first_class, end = here
    # The shard's classes among those of the batch, and among the draws of the intervals that reach into it.
    last = labels.new_full((1,), certain + drawn)
    slots, exist = circle.slots_of(first_class, end, last)
    own = torch.arange(len(labels), device=labels.device)
    candidates = torch.cat([circle.batch, circle.picked(torch.cat([slots, last]))])
    inside = torch.cat([own < circle.present, exist]) & (candidates >= first_class) & (candidates < end)
    chosen = inside.nonzero().squeeze(1)
    before = torch.searchsorted(circle.batch, first_class)
    at = torch.where((labels >= first_class) & (labels < end), circle.labels - before, ELSEWHERE)
    return Drawn(candidates[chosen] - first_class, at, torch.cat([own, slots])[chosen], certain, weight)


class _Circle:
    """The classes that a batch lacks, in a circle of N that is cut into K intervals; one is picked from each."""

    def __init__(self, labels: Tensor, num_classes: int, slots: int, state: Tensor) -> None:
        self.labels, self.batch, self.present = _distinct(labels, num_classes)
        self.num_classes, self.slots, self.state = num_classes, slots, state
        self.others, self.intervals = num_classes - self.present, slots - self.present

    def picked(self, places: Tensor) -> Tensor:
        """Class drawn by the interval of each slot; the last of ``places`` is that behind the slots."""
        slots, random = places[:-1], _random(self.state, places)
        # The j-th of N others is j and as many more as there are classes of the batch up to it.
        j, others, intervals = (slots - self.present).clamp(min=0), self.others, self.intervals.clamp(min=1)
        low, high = j * others // intervals, (j + 1) * others // intervals
        others = others.clamp(min=1)
        picked = (low + random[:-1] % (high - low).clamp(min=1) + random[-1] % others) % others
        ranks = torch.arange(len(self.batch), device=slots.device)
        return picked + torch.searchsorted(self.batch - ranks, picked, right=True)

    def slots_of(self, first: int, end: int, last: Tensor) -> tuple[Tensor, Tensor]:
        """Slots whose intervals may reach into the classes ``first:end``, and which of these slots exist."""
        # n places of the circle meet at most n·K/N + 3 intervals: two at the ends, and one where the circle closes.
        count = min(self.slots, (end - first) * self.slots // self.num_classes + 3)
        steps = torch.arange(count, device=self.batch.device)
        others, intervals = self.others.clamp(min=1), self.intervals.clamp(min=1)
        turn = _random(self.state, last) % others  # as in picked()
        start = (first - torch.searchsorted(self.batch, first) - turn) % others
        # The last interval that begins at start or before.
        j = ((start + 1) * intervals - 1) // others + steps
        return self.present + j % intervals, steps < self.intervals


def _distinct(labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places of the labels among the distinct ones; these, ascending and padded beyond C, (B,); their number, ()."""
    ordered, order = torch.sort(labels, stable=True)
    before = torch.cat([ordered.new_full((1,), -1), ordered])[:-1]
    rank = (ordered != before).cumsum(0) - 1
    places = torch.empty_like(rank).scatter(0, order, rank)
    # Equal labels write one value to one place.
    distinct = num_classes + torch.arange(len(labels), device=labels.device)
    return places, distinct.scatter(0, rank, ordered), (rank + 1).amax() if len(labels) else rank.sum()


def _random(state: Tensor, places: Tensor) -> Tensor:
    """Numbers in 0 … 2^63 − 1 at ``places`` int64 of a sequence: SplitMix64, started anew for each seed and step."""
    seed, step = state.unbind()
    return mix_bits(mix_bits(seed * FIRST + step) + places * GOLDEN) & torch.iinfo(torch.int64).max
