"""The tree of icon names: context › first word › name."""

from collections.abc import Sequence

from experiments.taxonomy.tree import ClassTree
from robustdml.errors import UsageError


def tree_from_icon_names(class_names: Sequence[str]) -> ClassTree:
    """Build the tree of icons from their names, which begin with what they are about: ``document-save``.

    Examples
    --------
    >>> tree = tree_from_icon_names(["actions/document-save", "actions/document-open", "actions/zoom-in", "apps/gimp"])
    >>> tree.confused_with(0), tree.confused_with(2)
    (array([1]), array([0, 1]))
    """
    return ClassTree([_path(name) for name in class_names])


def _path(class_name: str) -> tuple[str, ...]:
    context, _, name = class_name.partition("/")
    if not context or not name:
        raise UsageError(f"class {class_name!r} is no icon: expected context/name; give another taxonomy")
    return context, f"{context}/{name.split('-')[0]}"
