"""Trees of classes: which class is near which, for noise that looks like people's mistakes."""

from experiments.taxonomy.hangul import tree_from_hangul
from experiments.taxonomy.sources import TAXONOMIES, load_taxonomy, tree_of
from experiments.taxonomy.tree import ClassTree, tree_from_parents
from experiments.taxonomy.unicode_names import tree_from_unicode_names
from experiments.taxonomy.wordnet import tree_from_wordnet

__all__ = [
    "TAXONOMIES",
    "ClassTree",
    "load_taxonomy",
    "tree_from_hangul",
    "tree_from_parents",
    "tree_from_unicode_names",
    "tree_from_wordnet",
    "tree_of",
]
