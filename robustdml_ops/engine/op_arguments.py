"""The options of a sweep as arguments of a registered op.

The options of a primitive are the fields of a dataclass with :func:`op_options`. Eager mode passes the object on.
Compiled graphs and ``torch.func`` take lists of names, numbers and tensors: :func:`flatten` makes them of the fields,
and :func:`unflatten` the object of them again. So an option is declared once, and the schema of an op has none of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

T = TypeVar("T")
SCHEMA = "str[] names, float[] numbers, Tensor[] tensors"
_TABLES: dict[str, Any] = {}  # by the names of their classes


class OpArguments(NamedTuple):
    """Options as lists: classes and texts; kinds of the fields and numbers; tensors."""

    names: list[str]
    numbers: list[float]
    tensors: list[Tensor]


# Kinds of a field's value. Integers: PyTorch's compiler takes floats of a module for variables.
_NONE, _TENSOR, _NUMBER, _TEXT, _TRUTH, _INTEGER, _TABLE = range(7)
_WHOLE = {_TRUTH: bool, _INTEGER: int}


def op_options(kind: type[T]) -> type[T]:
    """Class decorator: the fields are tensors, numbers, texts, truth values, or tables, each of which may be None."""
    kind.option_names = tuple(field.name for field in fields(kind))  # type: ignore[attr-defined, arg-type]
    _TABLES[kind.__name__] = kind
    return kind


def flatten(options: Any) -> OpArguments:
    """The lists of ``options``."""
    found = OpArguments([type(options).__name__], [], [])
    for name in options.option_names:
        value = getattr(options, name)
        if value is None:
            found.numbers.append(float(_NONE))
        elif isinstance(value, Tensor):
            found.numbers.append(float(_TENSOR))
            found.tensors.append(value)
        elif isinstance(value, str):
            found.numbers.append(float(_TEXT))
            found.names.append(value)
        elif isinstance(value, (bool, int, float)):
            kind = _TRUTH if isinstance(value, bool) else _INTEGER if isinstance(value, int) else _NUMBER
            found.numbers.extend((float(kind), float(value)))
        else:
            found.numbers.append(float(_TABLE))
            names, numbers, tensors = flatten(value)
            found.names.extend(names)
            found.numbers.extend(numbers)
            found.tensors.extend(tensors)
    return found


def unflatten(names: Sequence[str], numbers: Sequence[float], tensors: Sequence[Tensor]) -> Any:
    """The inverse of :func:`flatten`."""
    return _table(iter(names), iter(numbers), iter(tensors))


def _table(names: Iterator[str], numbers: Iterator[float], tensors: Iterator[Tensor]) -> Any:
    values: list[Any] = []
    kind, held_by = _TABLES[next(names)], {_TENSOR: tensors, _NUMBER: numbers, _TEXT: names}
    for _ in kind.option_names:
        what = int(next(numbers))
        if what == _TABLE:
            values.append(_table(names, numbers, tensors))
        elif what in _WHOLE:
            values.append(_WHOLE[what](next(numbers)))
        else:
            values.append(None if what == _NONE else next(held_by[what]))
    return kind(*values)
