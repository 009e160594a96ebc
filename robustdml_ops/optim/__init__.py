"""Optimisers of proxies within the sweep of the loss: no gradient of their size exists, see docs/large-classes.md."""

from robustdml_ops.optim.formulas import ProxyAdagrad, ProxyAdamW, ProxySGD
from robustdml_ops.optim.growth import grow_classes
from robustdml_ops.optim.optimizer import ProxyOptimizer

__all__ = ["ProxyAdagrad", "ProxyAdamW", "ProxyOptimizer", "ProxySGD", "grow_classes"]
