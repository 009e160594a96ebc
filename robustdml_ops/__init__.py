"""Fused losses for deep metric learning with very many classes and wrong labels.

==============  =============================================================================
`losses`        modules with the names and signatures of pytorch-metric-learning
`robust`        filters and weights: which labels are probably clean
`ops`           the differentiable sums that both are made of
`optim`         optimisers that update proxies inside the sweep
`distributed`   class matrices divided among processes
==============  =============================================================================

Each is imported when it is first used. `patch_pytorch_metric_learning` puts the losses in place of that package's.
`backward_in_micro_batches` takes a large batch through the network a micro-batch at a time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robustdml_ops import distributed, losses, ops, optim, robust
    from robustdml_ops.losses.peer.patch import patch_pytorch_metric_learning
    from robustdml_ops.micro_batches import backward_in_micro_batches

__version__ = "0.1.0"
_FUNCTIONS = {"patch_pytorch_metric_learning": "losses.peer.patch", "backward_in_micro_batches": "micro_batches"}
__all__ = ["__version__", "backward_in_micro_batches", "distributed", "losses", "ops", "optim"]
__all__ += ["patch_pytorch_metric_learning", "robust"]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(import_module(f"{__name__}.{_FUNCTIONS[name]}"), name)
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
