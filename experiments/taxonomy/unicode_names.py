"""The tree of Unicode names: script › case › base letter › diacritics."""

import re
import unicodedata
from collections.abc import Sequence

from experiments.taxonomy.tree import ClassTree
from robustdml.errors import UsageError

_CASES = frozenset({"CAPITAL", "SMALL"})
_KINDS = frozenset({"LETTER", "LIGATURE", "SYMBOL"})


def tree_from_unicode_names(class_names: Sequence[str]) -> ClassTree:
    """Build the tree of characters from their names: siblings share a base letter.

    Examples
    --------
    >>> tree = tree_from_unicode_names(["á", "à", "b", "LATIN CAPITAL LETTER A"])
    >>> tree.confused_with(0), tree.confused_with(2)
    (array([1]), array([0, 1]))
    """
    return ClassTree([_path(unicode_name(name)) for name in class_names])


def unicode_name(class_name: str) -> str:
    """Unicode name of a class, given as a character or as its name."""
    if len(class_name) == 1:
        return unicodedata.name(class_name, f"CHARACTER {ord(class_name):04X}")
    name = re.sub(r"^U\+[0-9A-F]+ ", "", class_name)
    try:
        unicodedata.lookup(name)
    except KeyError:
        raise UsageError(f"class {class_name!r} is no Unicode character; give another taxonomy") from None
    return name


def _path(name: str) -> tuple[str, ...]:
    base, _, _ = name.partition(" WITH ")
    words = base.split()
    first_mark = next((place for place, word in enumerate(words) if word in _CASES | _KINDS), 1)
    script = " ".join(words[:first_mark])
    case = " ".join(word for word in words[first_mark:] if word in _CASES)
    letter = " ".join(word for word in words[first_mark:] if word not in _CASES | _KINDS)
    return script, f"{script} › {case}", f"{script} › {case} › {letter}"
