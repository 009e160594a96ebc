import unicodedata

import numpy as np
import pytest

from robustdml.data import load_data
from robustdml.data import named as glyphs


@pytest.fixture(scope="module")
def made(cache_of_the_session):
    return {
        "small": load_data("glyphs"),
        "validation": load_data("glyphs-validation"),
        "large": load_data("glyphs-large"),
        "pretraining": glyphs.PRETRAINING.load(),
    }


def code_points(split):
    return [int(name.split()[0][2:], 16) for name in split.class_names]


def test_sizes(made):
    train, test = made["small"].train, made["small"].test
    assert (train.num_classes, test.num_classes) == (200, 400)
    assert train.inputs.shape[1:] == test.inputs.shape[1:] == (1, 32, 32)
    assert train.inputs.dtype == np.uint8
    per_class = np.bincount(train.labels) / glyphs.COPIES
    assert 12 <= per_class.min() <= per_class.max() <= 16
    large = made["large"]
    assert large.train.num_classes == large.test.num_classes > 600
    assert 13 < len(large.train) / large.train.num_classes < 14


def test_classes_are_disjoint_and_of_the_right_kind(made):
    for data in (made["small"], made["large"]):
        assert not set(code_points(data.train)) & set(code_points(data.test))
    small, validation = made["small"], made["validation"]
    assert np.array_equal(small.train.inputs, validation.train.inputs)
    assert validation.test.num_classes == 400
    assert not set(code_points(validation.test)) & {*code_points(small.train), *code_points(small.test)}
    letters = code_points(made["large"].train) + code_points(made["large"].test)
    assert all(unicodedata.category(chr(code))[0] == "L" for code in letters)
    others = code_points(made["pretraining"])
    assert {unicodedata.category(chr(code))[0] for code in others} <= set("SNPM")
    assert np.bincount(made["pretraining"].labels).min() >= 6


def test_no_two_classes_share_a_drawing_and_none_is_empty(made):
    owners = {}
    for split in (made["large"].train, made["large"].test):
        for image, label in zip(split.inputs, split.labels, strict=True):
            name = split.class_names[label]
            assert image.any()
            assert owners.setdefault(image.tobytes(), name) == name


def test_copies_differ_but_show_the_same(made):
    train = made["small"].train
    first = train.inputs[: glyphs.COPIES].astype(float).reshape(glyphs.COPIES, -1)
    assert len({copy.tobytes() for copy in first}) == glyphs.COPIES
    ink = train.inputs.reshape(len(train), -1).astype(float).mean(axis=1).reshape(-1, glyphs.COPIES)
    assert (ink.min(axis=1) > 0).all()
    assert np.median(ink.max(axis=1) / ink.min(axis=1)) < 1.4


def test_key_depends_on_the_fonts(monkeypatch):
    before = glyphs.glyphs_key()
    glyphs.glyphs_key.cache_clear()
    fonts = glyphs._font_files()
    assert len(fonts) == 16
    monkeypatch.setattr(glyphs, "_font_files", lambda: fonts[:-1])
    assert glyphs.glyphs_key() != before
    glyphs.glyphs_key.cache_clear()
