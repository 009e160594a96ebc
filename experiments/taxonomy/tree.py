"""A tree whose leaves are classes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from robustdml.errors import UsageError

# Inner nodes have names, leaves are class numbers, and None is the root above all.
_Node: TypeAlias = str | int | None
_ROOT: _Node = None


class ClassTree:
    """A tree whose leaves are the classes 0..C-1, given the inner nodes above each from a root down.

    Examples
    --------
    >>> tree = ClassTree([("animal", "bird"), ("animal", "bird"), ("animal", "fish")])
    >>> tree.confused_with(0), tree.confused_with(2)
    (array([1]), array([0, 1]))
    """

    def __init__(self, paths: Sequence[tuple[str, ...]]) -> None:
        if len(paths) < 2:
            raise UsageError(f"taxonomy: {len(paths)} classes; a class can be taken for another from two classes on")
        parent: dict[_Node, _Node] = {}
        children: dict[_Node, dict[_Node, None]] = {_ROOT: {}}
        for label, path in enumerate(paths):
            nodes: tuple[_Node, ...] = (_ROOT, *path, label)
            for above, below in pairwise(nodes):
                parent[below] = above
                children[above][below] = None
                children.setdefault(below, {})
        interval, order = _number_leaves(children)
        self._order = np.array(order, dtype=np.int64)
        # Positions in the order of leaves. A class is confused with the leaves of an interval but for its own subtree:
        # start of the interval, start and size of the own subtree, number of the other leaves.
        bounds = np.empty((len(paths), 4), dtype=np.int64)
        for label in range(len(paths)):
            node: _Node = label
            while len(children[parent[node]]) == 1:
                node = parent[node]
            (start, stop), (own_start, own_stop) = interval[parent[node]], interval[node]
            bounds[label] = start, own_start, own_stop - own_start, stop - start - (own_stop - own_start)
        self._start, self._own_start, self._own_size, self._count = bounds.T

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return len(self._order)

    def confused_with(self, label: int) -> NDArray[np.int64]:
        """Labels (ascending) of the leaves under the first branching ancestor, without the class itself."""
        return np.sort(self._pick(np.full(self._count[label], label), np.arange(self._count[label])))

    def draw_confused(self, labels: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """For each label one of those it is confused with, drawn uniformly."""
        return self._pick(labels, random.integers(0, self._count[labels]))

    def _pick(self, labels: NDArray[np.int64], drawn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leaves by their number in 0..count-1, skipping the own subtree of each label."""
        place = self._start[labels] + drawn
        picked: NDArray[np.int64] = self._order[place + self._own_size[labels] * (place >= self._own_start[labels])]
        return picked


def _number_leaves(children: dict[_Node, dict[_Node, None]]) -> tuple[dict[_Node, tuple[int, int]], list[int]]:
    """Put the leaves into depth-first order, so that those under any node are an interval of it."""
    interval: dict[_Node, tuple[int, int]] = {}
    order: list[int] = []
    stack: list[tuple[_Node, int]] = [(_ROOT, -1)]
    while stack:
        node, start = stack.pop()
        if start >= 0:
            interval[node] = (start, len(order))
        elif isinstance(node, int):
            interval[node] = (len(order), len(order) + 1)
            order.append(node)
        else:
            stack.append((node, len(order)))
            stack += [(child, -1) for child in reversed(children[node])]
    return interval, order
