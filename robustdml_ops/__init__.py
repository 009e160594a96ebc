"""Fused losses for deep metric learning with very many classes and wrong labels.

==============  =============================================================================
`losses`        modules with the names and signatures of pytorch-metric-learning
`robust`        filters and weights: which labels are probably clean
`ops`           the differentiable sums that both are made of
`optim`         optimisers that update proxies inside the sweep
`distributed`   class matrices divided among processes
==============  =============================================================================

Each is imported when it is first used. `patch_pytorch_metric_learning` puts the losses in place of that package's.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustdml_ops import distributed, losses, ops, optim, robust
    from robustdml_ops.losses.peer.patch import patch_pytorch_metric_learning

__version__ = "0.1.0"
__all__ = ["__version__", "distributed", "losses", "ops", "optim", "patch_pytorch_metric_learning", "robust"]


def __getattr__(name: str) -> Any:
    if name == "patch_pytorch_metric_learning":
        return import_module(f"{__name__}.losses.peer.patch").patch_pytorch_metric_learning
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
