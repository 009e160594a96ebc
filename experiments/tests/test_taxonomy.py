import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.taxonomy import (
    load_taxonomy,
    tree_from_parents,
    tree_from_unicode_names,
    tree_from_wordnet,
)
from experiments.taxonomy.wordnet_files import find_wordnet
from robustdml.errors import UsageError

ANIMALS = {"wren": "bird", "tern": "bird", "carp": "fish", "bird": "animal", "fish": "animal"}


def confused(tree, names):
    return {name: {names[other] for other in tree.confused_with(label)} for label, name in enumerate(names)}


def test_parents():
    names = ["carp", "wren", "tern"]
    assert confused(tree_from_parents(ANIMALS, names), names) == {
        "carp": {"wren", "tern"}, "wren": {"tern"}, "tern": {"wren"},
    }  # fmt: skip
    # The way up passes nodes with one child, and roots are joined.
    names = ["wren", "carp", "oak"]
    tree = tree_from_parents({**ANIMALS, "oak": "plant"}, names)
    assert confused(tree, names) == {"wren": {"carp"}, "carp": {"wren"}, "oak": {"wren", "carp"}}


def test_a_class_may_be_an_inner_node_and_a_node_two_classes():
    names = ["bird", "wren", "tern", "carp"]
    assert confused(tree_from_parents(ANIMALS, names), names)["bird"] == {"wren", "tern"}
    tree = tree_from_parents(ANIMALS, ["carp", "wren", "wren"])
    assert [tree.confused_with(label).tolist() for label in range(3)] == [[1, 2], [2], [1]]


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
    tree = tree_from_parents(parents, names)
    for label, name in enumerate(names):
        for below, node in zip(paths[name], paths[name][1:], strict=False):
            others = {other for other in names if node in paths[other] and below not in paths[other]}
            if others:
                break
        assert {names[other] for other in tree.confused_with(label)} == others
        drawn = tree.draw_confused(np.full(50, label), np.random.default_rng(0))
        assert {names[other] for other in drawn} <= others


@pytest.mark.parametrize(
    ("parents", "names", "message"),
    [
        (ANIMALS, ["wren", "oak", "elm"], "2 of 3 classes are not in it, the first is 'oak'"),
        (ANIMALS, ["wren"], "1 classes"),
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, ["a", "d"], "a → b → c → a is a cycle"),
        ({"a": "a", "b": "a"}, ["a", "b"], "a → a is a cycle"),
    ],
)
def test_bad_trees(parents, names, message):
    with pytest.raises(UsageError, match=message):
        tree_from_parents(parents, names)


def test_files(tmp_path):
    path = tmp_path / "tree.tsv"
    path.write_text("# birds\nwren\tbird\n\n tern \t bird\ncarp\tfish\nwren\tbird\n")
    names = ["wren", "tern", "carp"]
    assert confused(load_taxonomy(str(path), names), names)["wren"] == {"tern"}
    for text, message in (
        ("wren bird\n", "line 1: 'wren bird'; expected a node, a tab and its parent"),
        ("a\tb\na\tc\n", "line 2: 'a' has a second parent, 'c' beside 'b'"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            load_taxonomy(str(path), names)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not a readable text"):
        load_taxonomy(str(path), names)
    with pytest.raises(UsageError, match="expected unicode, hangul, wordnet, wordnet:ROOT or a file"):
        load_taxonomy(str(tmp_path / "none"), names)


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
        load_taxonomy("unicode", ["a", "Laysan Albatross"])


SYNSETS = {  # name: words, parents with their pointer symbol
    "entity": (["entity"], []),
    "animal": (["animal", "beast"], [("@", "entity")]),
    "bird": (["bird"], [("@", "animal")]),
    "albatross": (["albatross"], [("@", "sea bird")]),
    "sea bird": (["sea_bird"], [("@", "bird")]),
    "black-footed": (["black-footed_albatross", "gooney"], [("@", "albatross")]),
    "wren": (["wren"], [("@", "bird"), ("+", "cardinal")]),
    "cardinal": (["cardinal"], [("@", "entity")]),
    "redbird": (["cardinal", "redbird"], [("@", "wren"), ("@", "bird")]),
    "Oscar": (["Oscar"], [("@i", "albatross")]),
}


def write_wordnet(folder, synsets=SYNSETS, shift=0):
    licence = "  1 This is no WordNet, but has its format.  \n"
    lines = {
        name: " ".join(
            [f"{{{name}}}", "03", "n", f"{len(words):02x}", *(f"{word} 0" for word in words), f"{len(pointers):03d}"]
            + [f"{symbol} {{{target}}} n 0000" for symbol, target in pointers] + ["| a gloss  \n"]
        )
        for name, (words, pointers) in synsets.items()
    }  # fmt: skip
    places, place = {}, len(licence) + shift
    for name, line in lines.items():
        places[name] = f"{place:08d}"
        place += len(line.format_map(dict.fromkeys(synsets, "0" * 8)))
    (folder / "data.noun").write_text(licence + "".join(line.format_map(places) for line in lines.values()))
    senses = {}
    for name, (words, _) in synsets.items():
        for word in words:
            senses.setdefault(word.lower(), []).append(places[name])
    index = [f"{w} n {len(found)} 2 @ ~ {len(found)} 0 {' '.join(found)}  \n" for w, found in sorted(senses.items())]
    (folder / "index.noun").write_text(licence + "".join(index))
    return folder


def place_of(folder, synset):
    lines = (folder / "data.noun").read_text().splitlines()
    return lines[1 + list(SYNSETS).index(synset)][:8]


def test_wordnet_format(tmp_path, monkeypatch):
    folder = write_wordnet(tmp_path)
    names = ["001.Black_footed_Albatross", "Laysan Albatross", "house wren", "017.Cardinal", "Oscar the albatross"]
    tree = tree_from_wordnet(names, "bird", folder)
    # The first sense of cardinal is no bird; its second one has two hypernyms, the nearer one to the root counts.
    assert confused(tree, names) == {
        names[0]: {names[1], names[4]}, names[1]: {names[0], names[4]}, names[4]: {names[0], names[1]},
        names[2]: {names[0], names[1], names[3], names[4]}, names[3]: {names[0], names[1], names[2], names[4]},
    }  # fmt: skip
    monkeypatch.setenv("WNSEARCHDIR", str(folder))
    assert find_wordnet() == folder
    assert confused(load_taxonomy("wordnet", ["wren", "beast", "cardinal"]), ["wren", "beast", "cardinal"]) == {
        "wren": {"beast"}, "beast": {"wren"}, "cardinal": {"wren", "beast"},
    }  # fmt: skip
    # Places in the file, as in the names of ImageNet's folders: the first sense of cardinal is no bird, the second is.
    cardinal, redbird, wren = (place_of(folder, name) for name in ("cardinal", "redbird", "wren"))
    names = [f"n{redbird} cardinal", f"n{wren}", f"n{place_of(folder, 'Oscar')} x"]
    assert confused(load_taxonomy("wordnet:bird", names), names)[names[2]] == {names[0], names[1]}
    with pytest.raises(
        UsageError, match=f"1 of 2 classes have no noun under 'bird' .* first is 'n{cardinal} cardinal'"
    ):
        load_taxonomy("wordnet:bird", [f"n{cardinal} cardinal", f"n{wren}"])
    with pytest.raises(UsageError, match="has no synset at 7;"):
        load_taxonomy("wordnet:bird", ["n00000007", f"n{wren}"])
    with pytest.raises(UsageError, match="2 of 3 classes have no noun under 'bird' in WordNet, the first is 'beast'"):
        load_taxonomy("wordnet:bird", ["wren", "beast", "xyz"])
    with pytest.raises(UsageError, match="the root 'unicorn' is no noun"):
        load_taxonomy("wordnet:unicorn", ["wren"])


def test_broken_wordnets(tmp_path, monkeypatch):
    write_wordnet(tmp_path, shift=3)
    with pytest.raises(UsageError, match="has no synset at"):
        tree_from_wordnet(["wren", "albatross"], "bird", tmp_path)
    monkeypatch.setattr("experiments.taxonomy.wordnet_files._USUAL_PLACES", ())
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path / "none"))
    monkeypatch.setenv("WNHOME", str(tmp_path))
    with pytest.raises(UsageError, match="no WordNet found; install one"):
        find_wordnet()


@pytest.mark.skipif(not Path("/usr/share/wordnet/data.noun").exists(), reason="Debian's wordnet-base is not installed")
def test_wordnet_itself():
    names = [
        "001.Black_footed_Albatross",
        "002.Laysan_Albatross",
        "017.Cardinal",
        "016.Painted_Bunting",
        "029.American_Crow",
    ]
    tree = tree_from_wordnet(names, "bird", Path("/usr/share/wordnet"))
    of_name = confused(tree, names)
    assert of_name[names[0]] == {names[1]} and of_name[names[2]] == {names[3]}
    assert of_name[names[4]] == {names[2], names[3]}


def test_hangul_goes_by_letters():
    names = ["U+AC00 HANGUL SYLLABLE GA", "각", "거", "나", "U+D7A3 HANGUL SYLLABLE HIH"]
    tree = load_taxonomy("hangul", names)
    assert [tree.confused_with(label).tolist() for label in range(5)] == [[1], [0], [0, 1], [0, 1, 2, 4], [0, 1, 2, 3]]
    for name in ("A", "U+4E00 一", "U+XYZ", "한글", "U+D7A4"):
        with pytest.raises(UsageError, match="is no Korean syllable; give another taxonomy"):
            load_taxonomy("hangul", [*names, name])
