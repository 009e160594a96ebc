"""Noise models, and the trees of classes by which one confuses them."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.tests.test_symmetric_noise import CLASSES, check_shares, unaltered, wrong
from experiments.noise import class_conditional, long_tailed, semantic, small_cluster
from experiments.noise.checks import check_labels
from experiments.taxonomy import ClassTree, tree_from_hangul, tree_from_unicode_names, tree_from_wordnet, wordnet
from robustdml.errors import UsageError

# Wren, carp, oak and tern.
PATHS = [("animal", "bird"), ("animal", "fish"), ("plant",), ("animal", "bird")]


@given(**CLASSES, rate=st.floats(0, 1))
def test_share_of_each_class_is_exact(sizes, rate, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    tree = ClassTree([(f"group {label // 3}",) for label in range(len(sizes))])
    check_shares(lambda: semantic(labels, rate, seed, tree), labels, rate, sizes)
    check_shares(lambda: long_tailed(labels, rate, seed, len(sizes)), labels, rate, sizes)


def test_semantic_noise_is_uniform_over_the_classes_confused_with():
    tree = ClassTree(PATHS)
    labels = np.repeat(np.arange(4), 6000)
    noisy, changed = semantic(labels, 0.5, 3, tree)
    counts = np.zeros((4, 4))
    np.add.at(counts, (labels[changed], noisy[changed]), 1)
    # Wren and tern are taken for each other, carp for both, oak for any animal.
    expected = np.array([[0, 0, 0, 3000], [1500, 0, 0, 1500], [1000, 1000, 0, 1000], [3000, 0, 0, 0]])
    assert np.abs(counts - expected).max() < 5 * 31.7
    assert np.array_equal(counts == 0, expected == 0)


@settings(max_examples=30)
@given(**CLASSES, rate=st.floats(0, 0.7), distinct=st.booleans())
def test_small_clusters_dissolve_whole_classes(sizes, rate, seed, distinct):
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    features = random.normal(size=(len(labels), 4)) if distinct else np.ones((len(labels), 4))
    wanted = int(np.floor(rate * len(labels) + 0.5))
    occupied = sum(size > 0 for size in sizes)
    if wanted > len(labels) - max(sizes) or occupied < 2:
        return
    noisy, changed = unaltered(lambda: small_cluster(labels, rate, seed, len(sizes), features), labels)
    assert changed.sum() == wanted
    shares = [changed[labels == label].mean() for label in range(len(sizes)) if sizes[label]]
    # Whole classes but for the last one; the others are untouched.
    assert sum(0 < share < 1 for share in shares) <= 1
    sources = {int(label) for label in labels[changed]}
    assert sources.isdisjoint(noisy[changed].tolist())


def test_clusters_stay_together():
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 40)
    drawing = np.arange(len(labels)) // 4
    features = random.normal(size=(200, 16))[drawing] + 0.01 * random.normal(size=(len(labels), 16))
    noisy, changed = small_cluster(labels, 0.5, 1, 20, features, cluster_size=4)
    assert len(np.unique(noisy)) == 10
    of_drawing = noisy.reshape(-1, 4)
    assert (of_drawing == of_drawing[:, :1]).all(1)[changed.reshape(-1, 4).all(1)].mean() > 0.8
    # Ten clusters of a class of 40 do not all go to one class.
    assert min(len(np.unique(noisy[labels == label])) for label in np.unique(labels[changed])) > 2
    again = small_cluster(labels, 0.5, 1, 20, features, cluster_size=4)[0]
    assert np.array_equal(noisy, again)
    assert not np.array_equal(noisy, small_cluster(labels, 0.5, 2, 20, features, cluster_size=4)[0])


def test_long_tailed_noise_flows_to_the_popular():
    labels = np.repeat(np.arange(6), 20_000)
    noisy, changed = long_tailed(labels, 0.5, 0, 6)
    counts = np.zeros((6, 6))
    np.add.at(counts, (labels[changed], noisy[changed]), 1)
    # The ranks are read off the sums, in which a popular class lacks only what its own samples would bring.
    order = np.argsort(-counts.sum(axis=0))
    popularity = np.empty(6)
    popularity[order] = 1 / np.arange(1, 7)
    expected = np.where(np.eye(6, dtype=bool), 0, popularity)
    expected *= 10_000 / expected.sum(axis=1, keepdims=True)
    # Standard deviations are at most 50.
    assert np.abs(counts - expected).max() < 5 * 50
    assert np.array_equal(counts == 0, np.eye(6, dtype=bool))
    ranks = {tuple(np.argsort(-np.bincount(long_tailed(labels, 0.5, seed, 6)[0]))) for seed in range(3)}
    assert len(ranks) == 3


@given(**CLASSES, rate=st.floats(0, 0.49))
def test_class_conditional_noise_has_its_overall_rate_exactly(sizes, rate, seed):
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    features = random.normal(size=(len(labels), 3))
    occupied = {label for label, size in enumerate(sizes) if size}
    if len(occupied) < 2:
        return
    noisy, changed = unaltered(lambda: class_conditional(labels, rate, seed, len(sizes), features), labels)
    assert changed.sum() == int(np.floor(rate * len(labels) + 0.5))
    assert set(noisy.tolist()) <= occupied
    for label in occupied:
        # Within 1 of the quota, which is within half of the rate.
        assert (rate / 2) * sizes[label] - 1 < changed[labels == label].sum() < (3 * rate / 2) * sizes[label] + 1
        assert len(set(noisy[changed & (labels == label)].tolist())) <= 3


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.65])
def test_class_conditional_noise_has_few_targets_in_unequal_shares(rate):
    # Classes on an arc: the nearest are those beside it.
    angles = np.deg2rad([0, 10, 21, 33, 46, 60, 75])
    labels = np.repeat(np.arange(7), 1000)
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1)[labels] * np.linspace(1, 9, 7000)[:, None]
    noisy, changed = class_conditional(labels, rate, 1, 7, features)
    near = [[1, 2, 3], [0, 2, 3], [1, 3, 0], [2, 4, 1], [3, 5, 2], [4, 6, 3], [5, 4, 3]]
    rates = []
    for label, others in enumerate(near):
        given = np.bincount(noisy[labels == label], minlength=7)
        rates.append(1 - given[label] / 1000)
        # Exact shares, within the rounding.
        assert np.abs(given[others] - np.array([0.5, 0.3, 0.2]) * 1000 * rates[-1]).max() <= 1
        assert given.argmax() == label
        assert given[others].sum() == changed[labels == label].sum()
    assert np.mean(rates) == pytest.approx(rate, abs=1e-9)
    assert len({round(value, 3) for value in rates}) > 4
    # 0.65 leaves little room below 2/3.
    assert max(rates) - min(rates) > (0.02 if rate > 0.6 else rate / 4)


def test_specs(monkeypatch):
    labels = np.repeat(np.arange(4), 10)
    features, tree = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), ClassTree(PATHS)
    for noise, words in (
        ("semantic:0.5", "semantic noise needs a tree of the classes of birds"),
        ("foo:0.5", "expected one of none, symmetric:RATE, small-cluster:RATE, semantic:RATE, long"),
    ):
        with pytest.raises(UsageError, match=words):
            wrong(noise, labels, 7, 4)
    monkeypatch.setattr("experiments.noise.tree_of", lambda data: tree)
    for name, expected in (
        ("small-cluster", small_cluster(labels, 0.5, 7, 4, features)),
        ("semantic", semantic(labels, 0.5, 7, tree)),
        ("long-tailed", long_tailed(labels, 0.5, 7, 4)),
        ("class-conditional", class_conditional(labels, 0.5, 7, 4, features)),
    ):
        assert np.array_equal(wrong(f"{name}:0.5", labels, 7, 4, features), expected[0])


def test_bad_arguments():
    labels, features = np.arange(12) % 4, np.eye(12)
    for noise, arguments, message in (
        (check_labels, (labels, 1.5, 4), "rate=1.5"),
        (check_labels, (labels, float("nan"), 4), "rate=nan"),
        (check_labels, (labels * 1.0, 0.5, 4), "float64"),
        (check_labels, (labels.reshape(2, 6), 0.5, 4), r"shape \(2, 6\)"),
        (check_labels, (labels, 0.5, 3), "0 to 3; expected 0 to 2"),
        (check_labels, (labels - 1, 0.5, 4), "-1"),
        (check_labels, (labels * 0, 0.5, 1), "second class"),
        (class_conditional, (labels, 0.7, 0, 4, features), r"rate=0.7: of 4 classes .* only below a rate of 0.667"),
        (class_conditional, (labels % 2, 0.5, 0, 4, features), r"rate=0.5: of 2 classes .* only below a rate of 0.5"),
        (class_conditional, (labels, 1.5, 0, 4, features), "rate=1.5: the share"),
        (class_conditional, (labels, 0.5, 0, 4, features[:5]), r"\(5, 12\): expected \(12, F\)"),
        (class_conditional, (labels * 0, 0.5, 0, 4, features), "labels of one class alone"),
        (small_cluster, (labels, 1.0, 0, 4, features), "12 wrong labels dissolve all 4 classes"),
        (small_cluster, (labels, 0.5, 0, 4, features[:5]), r"\(5, 12\): expected \(12, F\)"),
        (small_cluster, (labels, 0.5, 0, 4, features, 0.5), "cluster_size=0.5"),
    ):
        with pytest.raises(UsageError, match=message):
            noise(*arguments)


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


def test_unicode_names():
    characters = ["á", "à", "Á", "A", "ж", "ш", "b", "ﬁ"]
    tree = tree_from_unicode_names(characters)
    expected = {"á": "à", "à": "á", "Á": "A", "A": "Á", "ж": "ш", "ш": "ж", "b": "áàﬁ", "ﬁ": "áàb"}
    assert confused(tree, characters) == {name: set(others) for name, others in expected.items()}
    names = [f"U+{ord(character):04X} {unicodedata.name(character)}" for character in characters]
    assert confused(tree_from_unicode_names(names), characters) == confused(tree, characters)
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
