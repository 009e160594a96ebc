"""Errors of the native module name the function, the argument and the value."""

import re

import numpy as np
import pytest

REALS = ("positive_margin", "negative_margin", "positive_offset", "negative_offset")
HINGE = dict.fromkeys(REALS, 0.5) | {"euclidean": False, "positive_count": 0, "negative_count": 0}
ZEROS = ("S", "classes", "B", "scale", "scale_stride", "bias", "drop_above")
CLASSES = dict.fromkeys(ZEROS, 0) | {"centers": 1, "pooling": "none", "gamma": 1.0, "labels_each": 1}


@pytest.mark.parametrize("name", HINGE)
def test_a_missing_field_is_named(native, name):
    given = {key: value for key, value in HINGE.items() if key != name}
    with pytest.raises(TypeError, match=rf"PairHinge_f32\(\) is missing the keyword argument '{name}'"):
        native.PairHinge_f32(**given)


def test_an_unknown_field_is_named(native):
    with pytest.raises(TypeError, match=r"PairHinge_f64\(\) got an unexpected keyword argument 'margin'"):
        native.PairHinge_f64(**HINGE, margin=1.0)


@pytest.mark.parametrize(
    ("name", "value"), [("positive_margin", "1"), ("positive_count", -1), ("positive_count", 2.5), ("euclidean", "no")]
)
def test_a_value_that_does_not_fit_is_named(native, name, value):
    with pytest.raises(TypeError, match=re.escape(f"PairHinge_f32() can't take {value!r} as its argument '{name}'")):
        native.PairHinge_f32(**(HINGE | {name: value}))


def test_arguments_of_an_epilogue_are_named_too(native):
    chunk = native.ClassChunk_f32(**CLASSES)
    given = {"sorted_labels": 0, "order": 0, "first_label": 0, "shift": 0, "total": 0, "target": 0}
    with pytest.raises(TypeError, match=r"class_lse_f32\(\) is missing the keyword argument 'threads'"):
        native.class_lse_f32(chunk, **given)
    with pytest.raises(TypeError, match=r"class_lse_f32\(\) got an unexpected keyword argument 'lse'"):
        native.class_lse_f32(chunk, **given, threads=1, lse=0)


def test_numbers_of_numpy_are_numbers(native):
    native.ClassChunk_f64(**(CLASSES | {"B": np.int64(3), "gamma": np.float32(0.5)}))
    native.PairHinge_f32(**(HINGE | {"euclidean": np.True_, "positive_margin": 1}))


def test_an_unknown_pooling_is_refused(native):
    with pytest.raises(ValueError, match="pooling 'mean': expected 'none', 'max' or 'softmax'"):
        native.ClassChunk_f32(**(CLASSES | {"pooling": "mean"}))


def test_help_lists_the_fields(native):
    assert "ClassChunk_f32(*, S, classes, centers, " in native.ClassChunk_f32.__doc__
    assert "inverse_norm=0)" in native.ClassChunk_f32.__doc__
    assert "(chunk, *, sorted_labels, order, first_label, threads)" in native.anchor_lse_labels_f32.__doc__
