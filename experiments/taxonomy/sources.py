"""Taxonomies by name: from Unicode names, from Hangul, from WordNet, or from a file of one's own."""

from collections.abc import Sequence
from pathlib import Path

from experiments.taxonomy.hangul import tree_from_hangul
from experiments.taxonomy.tree import ClassTree, tree_from_parents
from experiments.taxonomy.unicode_names import tree_from_unicode_names
from experiments.taxonomy.wordnet import tree_from_wordnet
from robustdml.data import RetrievalData
from robustdml.errors import UsageError, did_you_mean, expanded

# Taxonomies of the classes of named data sets, as `load_taxonomy` takes them.
TAXONOMIES = {
    **dict.fromkeys(("glyphs", "glyphs-large"), "unicode"),
    "hangul": "hangul",
    "glosses": "wordnet",
}
TAXONOMIES |= {f"{name}-validation": source for name, source in TAXONOMIES.items()}


def tree_of(data: RetrievalData) -> ClassTree:
    """Build the tree of the training classes of a named data set."""
    if data.name not in TAXONOMIES:
        raise UsageError(f"semantic noise needs a tree of the classes of {data.name}: name one in TAXONOMIES")
    return load_taxonomy(TAXONOMIES[data.name], data.train.class_names)


def load_taxonomy(source: str, class_names: Sequence[str]) -> ClassTree:
    """Build the tree of some classes as a text says.

    Examples
    --------
    >>> tree = load_taxonomy("unicode", ["LATIN SMALL LETTER A", "LATIN SMALL LETTER B"])
    >>> type(tree).__name__
    'ClassTree'
    """
    if source == "unicode":
        return tree_from_unicode_names(class_names)
    if source == "hangul":
        return tree_from_hangul(class_names)
    if source == "wordnet" or source.startswith("wordnet:"):
        return tree_from_wordnet(class_names, source.partition(":")[2] or "entity")
    path = expanded(source)
    if not path.is_file():
        found = "no file" if path.exists() else "no such file"
        expected = "expected unicode, hangul, wordnet, wordnet:ROOT or a file of node⇥parent lines"
        close = did_you_mean(source, ("unicode", "hangul", "wordnet"))
        raise UsageError(f"taxonomy {source!r}: {found}; {expected}{close}")
    return tree_from_parents(_read_parents(path), class_names)


def _read_parents(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable text in UTF-8 ({error})") from error
    parents: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 2 or not all(fields):
            raise UsageError(f"{path}, line {number}: {line!r}; expected a node, a tab and its parent")
        node, parent = fields
        if parents.setdefault(node, parent) != parent:
            raise UsageError(
                f"{path}, line {number}: {node!r} has a second parent, {parent!r} beside {parents[node]!r}"
            )
    return parents
