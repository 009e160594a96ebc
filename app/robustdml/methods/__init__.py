"""The training methods by name.

A method is a file here, or a part of one: its groups of settings, a function that makes its loss, and an entry of the
file's ``METHODS``. Flags, configuration and checkpoints follow from what it declares.
"""

from robustdml.methods import classes, pairs
from robustdml.methods.method import Method
from robustdml.options import Options

__all__ = ["METHODS", "Method", "option_groups"]

# By the name that `--method` takes, in the order in which messages and ``--help`` name them.
METHODS: dict[str, Method] = {
    "robust": pairs.ROBUST,
    "many-classes": pairs.MANY_CLASSES,
    **classes.METHODS,
    **pairs.METHODS,
}


def option_groups() -> list[type[Options]]:
    """List the groups of settings of all methods, each once."""
    return list(dict.fromkeys(group for method in METHODS.values() for group in method.options))
