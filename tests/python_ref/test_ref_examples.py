"""The examples in the docstrings of the references."""

import doctest
import importlib
import pkgutil

import pytest

import python_ref

MODULES = [module.name for module in pkgutil.iter_modules(python_ref.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"python_ref.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
