"""Errors of the native module name the function, the argument and the value."""

import re

import numpy as np
import pytest

REALS = ("positive_margin", "negative_margin", "positive_offset", "negative_offset")
HINGE = dict.fromkeys(REALS, 0.5) | {"euclidean": False, "positive_count": 0, "negative_count": 0}
ZEROS = ("S", "classes", "B", "scale", "scale_stride", "bias", "drop_similar_negatives", "logit_weights")
CLASSES = dict.fromkeys(ZEROS, 0) | {"centers": 1, "pooling": "none", "gamma": 1.0, "labels_each": 1}


LABELLED = dict.fromkeys(
    ("sorted_labels", "order", "first_label", "shift", "total", "target", "weighted", "own", "nearest", "above"), 0
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: None}, f"is missing the keyword argument '{name}'") for name in HINGE),
        ({"margin": 1.0}, "got an unexpected keyword argument 'margin'"),
        *(
            ({name: value}, f"can't take {value!r} as its argument '{name}'")
            for name, value in (
                ("positive_margin", "1"), ("positive_count", -1), ("positive_count", 2.5), ("euclidean", "no")
            )
        ),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_named(native, changes, message):
    given = {key: value for key, value in (HINGE | changes).items() if value is not None}
    with pytest.raises(TypeError, match=re.escape(f"PairHinge_f32() {message}")):
        native.PairHinge_f32(**given)


@pytest.mark.parametrize(
    ("more", "message"),
    [({}, "is missing the keyword argument 'threads'"), ({"threads": 1, "lse": 0}, "got an unexpected .* 'lse'")],
)
def test_an_argument_of_an_epilogue_is_named_too(native, more, message):
    with pytest.raises(TypeError, match=rf"class_lse_f32\(\) {message}"):
        native.class_lse_f32(native.ClassChunk_f32(**CLASSES), **LABELLED, **more)


def test_numbers_of_numpy_are_numbers_and_poolings_are_known(native):
    native.ClassChunk_f64(**(CLASSES | {"B": np.int64(3), "gamma": np.float32(0.5)}))
    native.PairHinge_f32(**(HINGE | {"euclidean": np.True_, "positive_margin": 1}))
    with pytest.raises(ValueError, match="pooling 'mean': expected 'none', 'max' or 'softmax'"):
        native.ClassChunk_f32(**(CLASSES | {"pooling": "mean"}))


def test_help_lists_the_fields(native):
    assert "ClassChunk_f32(*, S, classes, centers, " in native.ClassChunk_f32.__doc__
    assert "inverse_norm=0)" in native.ClassChunk_f32.__doc__
    assert "(chunk, *, sorted_labels, order, first_label, threads)" in native.anchor_lse_labels_f32.__doc__
