"""The trials of every public op, loss, filter and optimiser, by name; and the public names."""

import inspect

from robustdml_ops import losses, ops, optim, robust
from tests.fuzz.trials import (
    anchor,
    classes,
    filters,
    losses_anchor,
    losses_class,
    losses_pairs,
    losses_samples,
    optimizers,
    pairs,
    scalars,
    self_paced,
    similarity,
)
from tests.fuzz.trials.batches import Trials

_ROOMS = (
    anchor, classes, filters, losses_anchor, losses_class, losses_pairs, losses_samples, optimizers, pairs, scalars,
    self_paced, similarity,
)  # fmt: skip
TRIALS: Trials = {name: make for room in _ROOMS for name, make in room.TRIALS.items()}

# What is no call: results, arguments, and the class that the optimisers derive from.
NO_TRIAL = {"ProcSimStep", "PRISMResult", "ProxyOptimizer"}
_RESULTS_AND_ARGUMENTS = {name for name in ops.__all__ if not inspect.isfunction(getattr(ops, name))}
PUBLIC = {
    name for module in (losses, ops, optim, robust) for name in module.__all__
} - NO_TRIAL - _RESULTS_AND_ARGUMENTS  # fmt: skip
