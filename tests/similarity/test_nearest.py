"""The k nearest rows of a gallery: those of a stable sort of the whole matrix, ties by index, N×M never held."""

import pytest
import torch

from python_ref import cosine_similarity
from robustdml_ops.ops import nearest
from tests.subprocesses import megabytes_beyond

BACKENDS = ["native", "eager"]
# One of each, odd sizes, all of a gallery, several tiles of queries and gallery, and many neighbours of many.
SHAPES = [(1, 1, 1, 1), (7, 9, 3, 9), (5, 64, 4, 64), (4, 129, 4, 3), (300, 4500, 16, 10), (1100, 50, 5, 3)]
SHAPES += [(3, 1000, 8, 200), (2, 5000, 8, 1500)]


def expected(queries, gallery, k, exclude_self=False):
    """By sorting all cosines, in the type that is computed in."""
    S = cosine_similarity(*(rows if rows.dtype == torch.float64 else rows.float() for rows in (queries, gallery)))
    if exclude_self:
        S.fill_diagonal_(-torch.inf)
    values, indices = S.sort(dim=1, descending=True, stable=True)
    return values[:, :k], indices[:, :k]


@pytest.mark.parametrize(("N", "M", "D", "k"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_as_sorting_all(backend, N, M, D, k, dtype):
    queries, gallery = torch.randn(N, D).to(dtype), torch.randn(M, D).mul(7).to(dtype)
    found = nearest(queries, gallery, k, backend=backend)
    values, _ = expected(queries, gallery, k)
    torch.testing.assert_close(found.values, values, rtol=0, atol=1e-5)
    # Where two are within rounding either may come first: the rows found have the cosines claimed.
    claimed = cosine_similarity(queries.double(), gallery.double()).gather(1, found.indices)
    torch.testing.assert_close(claimed, found.values.double(), rtol=0, atol=1e-5)
    assert all(len(set(row.tolist())) == k for row in found.indices)


def test_own_row_is_left_out(backend):
    X = torch.randn(500, 8)
    found = nearest(X, X, 4, exclude_self=True, backend=backend)
    assert (found.indices != torch.arange(500)[:, None]).all()
    torch.testing.assert_close(found.values, expected(X, X, 4, True)[0], rtol=0, atol=1e-5)
    large = torch.randn(4500, 4)  # of several tiles
    assert (nearest(large, large, 1, exclude_self=True, backend=backend).indices != torch.arange(4500)[:, None]).all()
    everything = nearest(X, X, 499, exclude_self=True, backend=backend)
    assert torch.equal(everything.indices.sort(1).values.sum(1), 499 * 250 - torch.arange(500))


def test_equal_rows_across_tiles(backend):
    """5,000 copies of one row: the first ones win, whatever tile they are in."""
    gallery = torch.cat([torch.randn(1, 4).expand(5000, 4), torch.randn(100, 4)])
    found = nearest(gallery[:3], gallery, 6, backend=backend)
    assert torch.equal(found.indices, torch.arange(6).expand(3, 6))
    own = nearest(gallery[:3], gallery, 6, exclude_self=True, backend=backend)
    assert own.indices.tolist() == [[j for j in range(7) if j != i][:6] for i in range(3)]


@pytest.mark.parametrize("order", [1, -1])
def test_sorted_galleries(order, backend):
    """Every candidate enters, or none after the first k."""
    angles = torch.linspace(0, 3, 3000, dtype=torch.float64)
    places = torch.arange(3000) if order > 0 else torch.arange(3000).flip(0)
    gallery = torch.stack([angles.cos(), angles.sin()], 1)[places]
    found = nearest(torch.tensor([[1.0, 0.0]] * 2, dtype=torch.float64), gallery, 1200, backend=backend)
    torch.testing.assert_close(found.values, angles[:1200].cos().expand(2, 1200), rtol=0, atol=1e-12)
    # At the first angles a step is rounding.
    assert torch.equal(found.indices[0, 10:], places.argsort()[10:1200])


def test_zero_rows_and_errors():
    X = torch.randn(5, 3)
    X[1] = 0
    assert (nearest(X, X, 5).values[1] == 0).all()
    assert nearest(X[:0], X, 2).indices.shape == (0, 2)
    for k, most in ((0, 5), (6, 5), (True, 5), (2.0, 5)):
        with pytest.raises(ValueError, match=f"k must be an integer from 1 to the {most} rows"):
            nearest(X, X, k)
    with pytest.raises(ValueError, match="from 1 to the 4 rows"):
        nearest(X, X, 5, exclude_self=True)
    with pytest.raises(ValueError, match="give the set itself as gallery"):
        nearest(X, X[:2], 1, exclude_self=True)
    with pytest.raises(ValueError, match="gallery must have 3 columns"):
        nearest(X, X[:, :2], 1)
    X[3, 1] = torch.nan
    with pytest.raises(ValueError, match=r"queries\[3\] has NaN or inf"):
        nearest(X, X[:2], 1)
    with pytest.raises(ValueError, match=r"gallery\[3\] has NaN or inf"):
        nearest(X[:2], X, 1)


def test_memory():
    """Beyond 2 MB of rows; all pairs of 8,000 rows would take 256 MB."""
    setup, warm_up = "X = torch.randn(8_000, 64)", "ops.nearest(X[:300], X[:300], 10)"
    assert megabytes_beyond(setup, warm_up, "ops.nearest(X, X, 10, exclude_self=True)") < 24
