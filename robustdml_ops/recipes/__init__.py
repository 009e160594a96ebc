"""Data, noise, training, evaluation and the command line: what one needs to use the losses on real images.

This part of the package needs the ``recipes`` extra; the losses themselves do not.
"""

from importlib.util import find_spec

_EXTRAS = {
    "matplotlib": "matplotlib",
    "PIL": "pillow",
    "pytorch_metric_learning": "pytorch-metric-learning",
    "rich": "rich",
    "sklearn": "scikit-learn",
}

_missing = [package for module, package in _EXTRAS.items() if find_spec(module) is None]
if _missing:
    raise ImportError(
        f"robustdml_ops.recipes needs {', '.join(_missing)}: install with `pip install robustdml_ops[recipes]`"
    )
