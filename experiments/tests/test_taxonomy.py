import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.taxonomy import ClassTree, tree_from_hangul, tree_from_unicode_names, tree_from_wordnet, wordnet
from robustdml.errors import UsageError

ANIMALS = {"wren": "bird", "tern": "bird", "carp": "fish", "bird": "animal", "fish": "animal"}


def tree_of_parents(parents, names):
    """The tree of some nodes by the parent of each."""
    paths = {name: [name] for name in names}
    for path in paths.values():
        while path[0] in parents:
            path.insert(0, parents[path[0]])
    return ClassTree([tuple(paths[name]) for name in names])


def confused(tree, names):
    return {name: {names[other] for other in tree.confused_with(label)} for label, name in enumerate(names)}


def test_a_node_may_be_two_classes_and_one_class_has_none_to_be_confused_with():
    tree = tree_of_parents(ANIMALS, ["carp", "wren", "wren"])
    assert [tree.confused_with(label).tolist() for label in range(3)] == [[1, 2], [2], [1]]
    with pytest.raises(UsageError, match="1 classes"):
        tree_of_parents(ANIMALS, ["wren"])


@given(st.data())
def test_against_a_plain_walk(data):
    """Random trees: the array form names the leaves that a walk over the nodes finds."""
    size = data.draw(st.integers(3, 25))
    parents = {str(node): str(data.draw(st.integers(0, node - 1))) for node in range(1, size)}
    names = data.draw(st.lists(st.sampled_from([*parents]), min_size=2, max_size=10, unique=True))
    paths = {}
    for name in names:
        path = [name]
        while path[-1] in parents:
            path.append(parents[path[-1]])
        paths[name] = [f"leaf {name}", *path]
    tree = tree_of_parents(parents, names)
    for label, name in enumerate(names):
        for below, node in zip(paths[name], paths[name][1:], strict=False):
            others = {other for other in names if node in paths[other] and below not in paths[other]}
            if others:
                break
        assert {names[other] for other in tree.confused_with(label)} == others
        drawn = tree.draw_confused(np.full(50, label), np.random.default_rng(0))
        assert {names[other] for other in drawn} <= others


def test_unicode_names():
    characters = ["á", "à", "Á", "A", "ж", "ш", "b", "ﬁ"]
    tree = tree_from_unicode_names(characters)
    expected = {"á": "à", "à": "á", "Á": "A", "A": "Á", "ж": "ш", "ш": "ж", "b": "áàﬁ", "ﬁ": "áàb"}
    assert confused(tree, characters) == {name: set(others) for name, others in expected.items()}
    names = [f"U+{ord(character):04X} {unicodedata.name(character)}" for character in characters]
    assert [tree_from_unicode_names(names).confused_with(c).tolist() for c in range(8)] == [
        tree.confused_with(c).tolist() for c in range(8)
    ]
    with pytest.raises(UsageError, match="class 'Laysan Albatross' is no Unicode character"):
        tree_from_unicode_names(["a", "Laysan Albatross"])


def test_hangul_goes_by_letters():
    names = ["U+AC00 HANGUL SYLLABLE GA", "각", "거", "나", "U+D7A3 HANGUL SYLLABLE HIH"]
    tree = tree_from_hangul(names)
    assert [tree.confused_with(label).tolist() for label in range(5)] == [[1], [0], [0, 1], [0, 1, 2, 4], [0, 1, 2, 3]]
    for name in ("A", "U+4E00 一", "U+XYZ", "한글", "U+D7A4"):
        with pytest.raises(UsageError, match="is no Korean syllable"):
            tree_from_hangul([*names, name])


SYNSETS = {  # name: words, parents with their pointer symbol
    "entity": (["entity"], []),
    "animal": (["animal", "beast"], [("@", "entity")]),
    "bird": (["bird"], [("@", "animal")]),
    "albatross": (["albatross"], [("@", "sea bird")]),
    "sea bird": (["sea_bird"], [("@", "bird")]),
    "wren": (["wren"], [("@", "bird"), ("+", "entity")]),
    # By way of the sea bird it is four steps below the root, by way of the animal two.
    "redbird": (["cardinal", "redbird"], [("@", "sea bird"), ("@", "animal")]),
    "Oscar": (["Oscar"], [("@i", "albatross")]),
}


@pytest.fixture
def birds(tmp_path, monkeypatch):
    """Class names by name of the synset, in a WordNet of our own."""
    licence = "  1 This is no WordNet, but has its format.  \n"
    texts = {
        name: " ".join(
            [f"{{{name}}}", "03", "n", f"{len(words):02x}", *(f"{word} 0" for word in words), f"{len(pointers):03d}"]
            + [f"{symbol} {{{target}}} n 0000" for symbol, target in pointers] + ["| a gloss  \n"]
        )
        for name, (words, pointers) in SYNSETS.items()
    }  # fmt: skip
    places, place = {}, len(licence)
    for name, text in texts.items():
        places[name] = f"{place:08d}"
        place += len(text.format_map(dict.fromkeys(SYNSETS, "0" * 8)))
    (tmp_path / "data.noun").write_text(licence + "".join(text.format_map(places) for text in texts.values()))
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    return {name: f"n{place} {name}" for name, place in places.items()}


def test_wordnet(birds, tmp_path):
    assert wordnet.find_wordnet() == tmp_path / "data.noun"
    oscar, albatross, wren, redbird = names = [birds[name] for name in ("Oscar", "albatross", "wren", "redbird")]
    assert confused(tree_from_wordnet(names), names) == {
        oscar: {albatross}, albatross: {oscar}, wren: {oscar, albatross}, redbird: {oscar, albatross, wren},
    }  # fmt: skip
    for bad in ("wren", "n00000007 wren", "n000"):
        with pytest.raises(UsageError, match=f"class '{bad}' is no synset of WordNet"):
            tree_from_wordnet([*names, bad])
