"""The native sums of pairs, on the CPU and in CUDA, which is emulated where there is no GPU, against eager."""

from itertools import cycle, product

import pytest
import torch

from robustdml_ops.ops import pair_hinge
from robustdml_ops.ops.pairs.sweep import BACKENDS
from tests.nightly import nightly_but
from tests.pairs import cases

NATIVE = BACKENDS["native"]
# A single pair, sizes around the vector and warp widths, more than one block of a sum, more than a warp's row.
SHAPES = [(1, 1, 1), (5, 33, 3), (8, 257, 5), (3, 2100, 4), (40, None, 9), (20, "anew", 3), (7, "first", 3)]
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", cases.PROBLEMS)
def test_same_as_eager(name, dtype, device):
    for shape in SHAPES if dtype == torch.float32 else SHAPES[1::3]:
        cases.assert_same_as_eager(NATIVE, name, shape, dtype, device)


@pytest.mark.parametrize("related", cases.RELATED, ids=str)
@pytest.mark.parametrize("name", cases.PROBLEMS)
@pytest.mark.parametrize("chunks", nightly_but([False], [False, True]))
def test_several_labels_and_ids_are_the_same_as_eager(name, related, chunks, monkeypatch):
    if chunks:
        monkeypatch.setattr("robustdml_ops.ops.pairs.sweep.lanes_serve", lambda *_: False)
    for shape in ((5, 33, 3), (40, None, 9), (20, "anew", 3), (7, "first", 3)):
        cases.assert_same_as_eager(NATIVE, name, shape, torch.float32, torch.device("cpu"), related=related)


@pytest.mark.parametrize("upstream", ["vector", "scalar", None])
@pytest.mark.parametrize("name", cases.PROBLEMS)
@pytest.mark.usefixtures("small_chunks")
def test_chunks_are_the_same_as_eager(name, upstream, device):
    for shape in ((20, 33, 3), (20, None, 9), (20, "anew", 3)):
        cases.assert_same_as_eager(NATIVE, name, shape, torch.float32, device, upstream)


@pytest.mark.parametrize("name", cases.PROBLEMS)
@pytest.mark.usefixtures("small_chunks")
def test_candidates_too_many_for_lanes(name, device, monkeypatch):
    """The loop over chunks multiplies candidates as they are; rows that are both have one gradient."""
    monkeypatch.setattr("robustdml_ops.ops.pairs.sweep.lanes_serve", lambda *_: False)
    for shape in ((20, None, 9), (20, 33, 3), (20, "anew", 3), (7, "first", 3)):
        cases.assert_same_as_eager(NATIVE, name, shape, torch.float32, device)


@pytest.mark.parametrize("name", cases.PROBLEMS)
def test_hardest_pairs(name, device):
    for shape, related in zip(SHAPES, cycle((None, *cases.RELATED)), strict=False):
        if related is not None and device.type == "cuda":  # several labels and ids take another backend
            continue
        cases.assert_same_hardest(NATIVE, name, shape, torch.float32, device, related)


@pytest.mark.parametrize("name", cases.PROBLEMS)
def test_same_bits_twice(name, device, threads):
    threads(2)
    cases.assert_same_bits_twice(NATIVE, name, (40, 257, 5), device)


@pytest.mark.parametrize(
    "types",
    nightly_but([*zip(TYPES, TYPES, strict=True), (torch.bfloat16, torch.float64)], product(TYPES, TYPES)),
    ids=str,
)
def test_near_rows_keep_their_distance(types, device):
    for shape in ((6, 33, 40), (3, 600, 7), (3, 2100, 1), *([(14, None, 70)] if types[0] == types[1] else [])):
        cases.assert_near_rows_keep_their_distance(NATIVE, shape, types, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("euclidean", [False, True])
def test_means_are_sums_over_terms(euclidean, dtype, device):
    cases.assert_means_are_sums_over_terms(NATIVE, euclidean, dtype, device)


@pytest.mark.usefixtures("exact_products")
def test_distances_up_to_the_resolution_have_no_gradient(device):
    cases.assert_no_gradient_up_to_the_resolution("native", device)


def test_logistic_losses_near_0_keep_their_digits(device):
    cases.assert_logistic_losses_near_0_keep_their_digits(NATIVE, device)


def test_a_nan_reaches_the_result(cuda_device):
    cases.assert_a_nan_reaches_the_result(NATIVE, cuda_device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_set_that_mining_empties_has_the_sum_0(dtype, device):
    cases.assert_a_set_that_mining_empties_has_the_sum_0(NATIVE, dtype, device)


def gradients_of_hinges(X, V=None):
    leaves = [matrix.detach().requires_grad_() for matrix in (X, V) if matrix is not None]
    labels = torch.zeros(len(X), dtype=torch.int64)
    others = () if V is None else (leaves[1], labels)
    sums = pair_hinge(leaves[0], labels, *others, positive_margin=-0.37, negative_margin=0.5, backend="native")
    return torch.autograd.grad((torch.arange(1.0, len(X) + 1) * sums.positive).sum(), leaves)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_candidates_by_columns_of_any_type(dtype):
    X, V = torch.randn(9, 16), torch.randn(9, 16).to(dtype)
    torch.testing.assert_close(gradients_of_hinges(X, V.t().contiguous().t()), gradients_of_hinges(X, V))


@pytest.mark.usefixtures("small_chunks")
def test_a_row_of_zeros_beside_a_row_of_extreme_length():
    """The batch goes over chunks, of which one has its rows at length 1, and the other as they are."""
    X = torch.randn(8, 5)
    X[3] *= 1e-27
    X[7] = 0
    (found,) = gradients_of_hinges(X)
    assert torch.isfinite(found).all() and found[:7].any() and not found[7].any()
