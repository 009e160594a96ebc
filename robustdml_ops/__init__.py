"""Fused losses for deep metric learning with very many classes and wrong labels.

``losses`` are modules with the names and signatures of pytorch-metric-learning, ``robust`` tells who is probably clean,
``ops`` are the differentiable sums that both are made of, ``optim`` optimisers that step within them, ``distributed``
divides their classes among processes. ``recipes`` trains and evaluates; it needs the extra of that name. All are
imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustdml_ops import distributed, losses, ops, optim, recipes, robust

__version__ = "0.1.0"
__all__ = ["__version__", "distributed", "losses", "ops", "optim", "recipes", "robust"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
