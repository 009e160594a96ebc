"""Trees from the letters of Korean syllables: initial consonant › vowel › final consonant."""

from collections.abc import Sequence

from experiments.taxonomy.tree import ClassTree
from robustdml.errors import UsageError

# The Unicode Standard, section 3.12: a syllable is FIRST + (initial · VOWELS + vowel) · FINALS + final.
FIRST, COUNT = 0xAC00, 11_172
VOWELS, FINALS = 21, 28


def tree_from_hangul(class_names: Sequence[str]) -> ClassTree:
    """Build the tree of Korean syllables: siblings differ only in the final consonant.

    Examples
    --------
    >>> tree = tree_from_hangul(["간", "갈", "곤", "난"])
    >>> tree.confused_with(0), tree.confused_with(2)
    (array([1]), array([0, 1]))
    """
    return ClassTree([_path(name) for name in class_names])


def _path(class_name: str) -> tuple[str, ...]:
    number = _code_point(class_name) - FIRST
    if not 0 <= number < COUNT:
        raise UsageError(f"taxonomy: class {class_name!r} is no Korean syllable; give another taxonomy")
    initial, vowel = number // (VOWELS * FINALS), number // FINALS
    return f"initial {initial}", f"initial and vowel {vowel}", f"syllable {number}"


def _code_point(class_name: str) -> int:
    if len(class_name) == 1:
        return ord(class_name)
    word = class_name.split(" ")[0]
    try:
        return int(word.removeprefix("U+"), 16) if word.startswith("U+") else -1
    except ValueError:
        return -1
