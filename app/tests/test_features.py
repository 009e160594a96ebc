import numpy as np
import pytest

from robustdml.data import load_data
from robustdml.errors import UsageError


def save(tmp_path, **arrays):
    path = tmp_path / "set.npz"
    np.savez(path, **arrays)
    return str(path)


def test_split_by_class_with_any_integer_labels(tmp_path):
    labels = np.array([-5, 900, 7, 7, 900, -5, 12], dtype=np.int16)
    features = np.arange(7, dtype=np.float64)[:, None] * [1, 10]
    data = load_data(save(tmp_path, features=features, labels=labels))
    assert sorted(data.train.class_names + data.test.class_names) == ["-5", "12", "7", "900"]
    for split in (data.train, data.test):
        assert split.inputs.dtype == np.float32
        assert sorted(set(split.labels)) == [0, 1]
        for row, label in zip(split.inputs, split.labels, strict=True):
            assert labels[int(row[0])] == int(split.class_names[label])


def test_own_test_part_and_half_precision(tmp_path):
    train, test = np.ones((3, 4), np.float16), np.zeros((2, 4), np.float16)
    path = save(tmp_path, features=train, labels=[3, 1, 3], test_features=test, test_labels=[9, 9])
    data = load_data(path)
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.test.class_names == ("9",)
    assert data.test.inputs.shape == (2, 4)


def test_labels_may_number_names(tmp_path):
    arrays = dict.fromkeys(("features", "test_features"), np.arange(4.0)[:, None])
    arrays |= {"labels": [3, 1, 3, 0], "test_labels": [2, 2, 0, 2], "class_names": ["wren", "auk", "owl", "crow"]}
    data = load_data(save(tmp_path, **arrays))
    assert [data.train.class_names[label] for label in data.train.labels] == ["crow", "auk", "crow", "wren"]
    assert [data.test.class_names[label] for label in data.test.labels] == ["owl", "owl", "wren", "owl"]


X = np.ones((4, 3), np.float32)
Y = np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": X}, "no array 'labels'; found features"),
        ({"labels": Y}, "no array 'features'"),
        ({"features": X[0], "labels": Y}, r"float32 \(3,\); expected numbers of shape \(N, F\)"),
        ({"features": X[:0], "labels": Y[:0]}, r"\(0, 3\)"),
        ({"features": X.astype(str), "labels": Y}, "<U"),
        ({"features": X, "labels": Y[:3]}, r"labels is int64 \(3,\); expected integers or texts of shape \(4,\)"),
        ({"features": X, "labels": Y.astype(float)}, "labels is float64"),
        ({"features": np.where(np.eye(4, 3), np.nan, X), "labels": Y}, "3 rows of features hold NaN .* the first is 0"),
        ({"features": X, "labels": Y, "test_labels": Y}, "both or neither"),
        ({"features": X, "labels": Y, "test_features": X[:, :2], "test_labels": Y}, "3 columns and test_features 2"),
        ({"features": X, "labels": Y * 0}, "at least 2 classes"),
        ({"features": X, "labels": Y + 1, "class_names": ["a", "b"]}, r"class_names is <U1 \(2,\), .* from 1 to 2"),
        ({"features": X, "labels": Y - 1, "class_names": ["a", "b"]}, "labels go from -1 to 0; expected texts, one"),
        ({"features": X, "labels": Y, "class_names": [1, 2]}, "class_names is int64"),
        ({"features": np.array([{}, 1], dtype=object), "labels": Y}, "not a readable"),
    ],
)
def test_bad_files_are_told(tmp_path, arrays, message):
    path = save(tmp_path, **arrays)
    with pytest.raises(UsageError, match=message) as error:
        load_data(path)
    assert path in str(error.value)
