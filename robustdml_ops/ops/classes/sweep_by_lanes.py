"""Both class sweeps in one call of the native module: each thread of the CPU takes chunks of classes on its own."""

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.lanes import sweep_fields
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.ops.classes.native import native_chunk, sum_addresses, upstream_addresses
from robustdml_ops.ops.classes.problem import ClassProblem, ClassSums, ClassUpstream


def sweep_by_lanes(similarities: Similarities, problem: ClassProblem, sums: ClassSums) -> None:
    """Add all classes to ``sums``."""
    _call("class_sweep", similarities, problem, sum_addresses(sums))


def sweep_backward_by_lanes(similarities: Similarities, problem: ClassProblem, upstream: ClassUpstream) -> None:
    """Fill the gradients that ``similarities`` has."""
    _call("class_sweep_backward", similarities, problem, upstream_addresses(upstream))


def _call(name: str, similarities: Similarities, problem: ClassProblem, given: dict[str, int]) -> None:
    function = getattr(module.library, f"{name}_{module.SUFFIX[similarities.compute]}")
    sorted_labels, order = problem.labels.by_class()
    whole = native_chunk(problem, 0, similarities.count // problem.centers)
    labels = {"sorted_labels": sorted_labels.data_ptr(), "order": order.data_ptr(), "first_label": 0}
    if function(whole, **labels, **given, **sweep_fields(similarities)):
        similarities.check_proxy_gradients()
