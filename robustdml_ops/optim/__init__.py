"""Optimisers of proxies within the sweep of the loss: no gradient of their size exists, see docs/large-classes.md."""

from robustdml_ops.optim.adagrad import ProxyAdagrad
from robustdml_ops.optim.adamw import ProxyAdamW
from robustdml_ops.optim.growth import grow_classes
from robustdml_ops.optim.optimizer import ProxyOptimizer
from robustdml_ops.optim.sgd import ProxySGD

__all__ = ["ProxyAdagrad", "ProxyAdamW", "ProxyOptimizer", "ProxySGD", "grow_classes"]
