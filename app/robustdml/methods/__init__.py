"""The training methods by name.

A method is a file here, or a part of one: its groups of settings, a function that makes its loss, and an entry of the
file's ``METHODS``. A new file is one line below; flags, configuration and checkpoints follow from what it declares.
"""

from importlib import import_module

from robustdml.methods.method import Method
from robustdml.options import Options

__all__ = ["METHODS", "Method", "option_groups"]

# In the order in which messages and ``--help`` name them.
_FILES = (
    "robust",
    "anchors",
    "softmax",
    "pairs",
    "confident",
    "self_paced",
)

# Methods by the name that `--method` takes.
METHODS: dict[str, Method] = {
    name: method for file in _FILES for name, method in import_module(f"{__name__}.{file}").METHODS.items()
}


def option_groups() -> list[type[Options]]:
    """List the groups of settings of all methods, each once."""
    return list(dict.fromkeys(group for method in METHODS.values() for group in method.options))
