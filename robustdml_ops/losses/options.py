"""Keyword arguments that the losses share."""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict


class LossOptions(TypedDict, total=False):
    """Of every loss."""

    reduction: str
    backend: str | None
    ignore_index: int | None
    distance: Any
    reducer: Any
    embedding_regularizer: Any
    embedding_reg_weight: float
    collect_stats: bool | None


class ClassMatrixOptions(LossOptions, total=False):
    """Of a loss with a class matrix, too."""

    weight_regularizer: Any
    weight_reg_weight: float
    weight_init_func: Any
    negative_share: float
    negative_seed: int


class SoftmaxOptions(ClassMatrixOptions, total=False):
    """Of a softmax over classes, too."""

    negative_correction: bool


def check_options(kind: type, known: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a loss of class ``kind`` does not know, or that exclude each other."""
    for name, value in options.items():
        if name not in known:
            own = [own for own in inspect.signature(kind).parameters if own not in ("options", "args", "kwargs")]
            near = difflib.get_close_matches(name, [*known, *own], 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise TypeError(f"{kind.__name__} has no argument {name!r}{hint}")
        reduces = name == "reducer" or name.endswith("regularizer")
        if reduces and value is not None and options.get("reduction") == "none":
            raise ValueError(
                f"{name} with reduction='none', which gives the losses before they are reduced: leave one out"
            )
