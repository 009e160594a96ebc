"""Trees from the folders of a path: ``food/fruit/apple``."""

from collections.abc import Sequence

from experiments.taxonomy.tree import ClassTree


def tree_from_paths(class_names: Sequence[str]) -> ClassTree:
    """Build the tree of classes whose names are paths: siblings lie in one folder.

    Examples
    --------
    >>> tree_from_paths(["food/apple", "food/pear", "tools/saw"]).confused_with(0)
    array([1])
    """
    paths = [name.split("/")[:-1] for name in class_names]
    return ClassTree([tuple("/".join(path[: depth + 1]) for depth in range(len(path))) for path in paths])
