"""Labels of several classes for a sample, and their weights."""

import pytest
import torch

from robustdml_ops.engine.labels import are_several
from robustdml_ops.losses.inputs import several_labels
from robustdml_ops.ops import ABSENT

X = torch.randn(3, 2, dtype=torch.float64)
LABELS = torch.tensor([[4, ABSENT, 1], [2, 2, 0], [ABSENT, ABSENT, ABSENT]])
WEIGHTS = torch.tensor([[0.7, 9.0, 0.3], [0.2, 0.3, 0.5], [1.0, 1.0, 1.0]], dtype=torch.float64)


def dense(labels, weights, num_classes=5):
    """The weights as a matrix (B, C)."""
    absent = labels == ABSENT
    matrix = torch.zeros(len(labels), num_classes, dtype=weights.dtype)
    return matrix.scatter_add(1, labels.masked_fill(absent, 0), weights.masked_fill(absent, 0))


def of(labels, weights=None):
    return several_labels(labels, weights, X[: len(labels)], 5, torch.float64)


def test_a_class_listed_twice_is_one_with_the_sum_of_its_weights():
    weights = WEIGHTS.clone().requires_grad_()
    found = of(LABELS, weights)
    torch.testing.assert_close(dense(*found), dense(LABELS, WEIGHTS))
    for row in found.labels:
        present = row[row != ABSENT]
        assert len(present.unique()) == len(present)
    (dense(*found) * torch.arange(5.0)).sum().backward()
    assert weights.grad.tolist() == [[4, 0, 1], [2, 2, 0], [0, 0, 0]]


def test_without_weights_classes_have_equal_shares():
    found = of(torch.tensor([[4, ABSENT, 1], [2, ABSENT, 0], [ABSENT, ABSENT, ABSENT]]))
    assert found.weights is None
    expected = [[0, 0.5, 0, 0, 0.5], [0.5, 0, 0.5, 0, 0], [0, 0, 0, 0, 0]]
    assert dense(found.labels, found.shares(torch.float64)).tolist() == expected


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_matrix_is_the_same(layout):
    matrix = dense(LABELS, WEIGHTS)
    sparse = matrix.to_sparse() if layout == "coo" else matrix.to_sparse_csr()
    assert are_several(sparse)
    torch.testing.assert_close(dense(*of(sparse)), matrix)
    empty = of(torch.zeros(3, 5).to_sparse())
    assert empty.labels.tolist() == [[ABSENT]] * 3


@pytest.mark.parametrize(
    ("labels", "weights", "error", "message"),
    [
        (LABELS, None, ValueError, r"labels must be distinct for each sample, got class 2 twice.*labels.to_sparse\(\)"),
        (LABELS[:2], None, ValueError, r"labels must have shape \(3,\) or \(3, K\).*\(2, 3\)"),
        (LABELS.double(), None, ValueError, r"must be integers, got torch.float64.*labels.to_sparse\(\)"),
        (LABELS + 3, None, IndexError, r"labels\[0, 0\] = 7 is outside 0 … 4"),
        (LABELS[:, :0], None, ValueError, r"got \(3, 0\)"),
        (LABELS, WEIGHTS[:, :2], ValueError, r"label_weights must be floating point.*\(3, 3\), got \(3, 2\)"),
        (LABELS, -WEIGHTS, ValueError, r"label_weights\[0, 0\] = -0.7: weights must be finite"),
        (LABELS, WEIGHTS / 0, ValueError, r"label_weights\[0, 0\] = inf"),
        (torch.eye(3).to_sparse(), None, ValueError, r"sparse labels must have shape \(3, 5\).*got \(3, 3\)"),
        (torch.zeros(3, 5).to_sparse(), WEIGHTS, ValueError, "beside sparse labels"),
    ],
)
def test_bad_input(labels, weights, error, message):
    with pytest.raises(error, match=message):
        several_labels(labels, weights, X, 5, torch.float64)
