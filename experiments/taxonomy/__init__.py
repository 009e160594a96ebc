"""Trees of classes, by which semantic noise confuses them."""

from experiments.taxonomy.hangul import tree_from_hangul
from experiments.taxonomy.paths import tree_from_paths
from experiments.taxonomy.tree import ClassTree
from experiments.taxonomy.unicode_names import tree_from_unicode_names
from experiments.taxonomy.wordnet import tree_from_wordnet
from robustdml.data import RetrievalData
from robustdml.errors import UsageError

__all__ = [
    "TREES",
    "ClassTree",
    "tree_from_hangul",
    "tree_from_paths",
    "tree_from_unicode_names",
    "tree_from_wordnet",
    "tree_of",
]

# Makes the tree of a named data set from the names of its classes.
TREES = {
    "glyphs": tree_from_unicode_names,
    "glyphs-large": tree_from_unicode_names,
    "hangul": tree_from_hangul,
    "glosses": tree_from_wordnet,
    "stamps": tree_from_paths,
}
TREES |= {f"{name}-validation": make_tree for name, make_tree in TREES.items()}


def tree_of(data: RetrievalData) -> ClassTree:
    """Build the tree of the training classes of a named data set."""
    if data.name not in TREES:
        raise UsageError(
            f"semantic noise needs a tree of the classes of {data.name}: there is one of {', '.join(TREES)}"
        )
    return TREES[data.name](data.train.class_names)
