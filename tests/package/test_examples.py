"""The examples of the docstrings."""

import doctest
import importlib
import pkgutil

import torch

import python_ref
import robustdml_ops

PRIMITIVES = ("anchor", "classes", "lambert_w", "otsu", "pairs", "self_paced", "similarity", "vmf")
REFERENCES = {f"robustdml_ops.python_ref.{module.name}" for module in pkgutil.iter_modules(python_ref.__path__)}


def test_examples_in_docstrings_are_true():
    torch.use_deterministic_algorithms(False)  # its NaN filling is not part of any example
    names = [module.name for module in pkgutil.walk_packages(robustdml_ops.__path__, "robustdml_ops.")]
    names = [name for name in names if "_native" not in name and "triton" not in name]
    modules = [robustdml_ops, *map(importlib.import_module, names)]
    results = [doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE) for module in modules]
    assert sum(result.failed for result in results) == 0
    tried = {module.__name__ for module, result in zip(modules, results, strict=True) if result.attempted}
    assert tried >= {f"robustdml_ops.ops.{primitive}" for primitive in PRIMITIVES} | REFERENCES
