"""How many matrices of all pairs exist at a time."""

import pytest
import torch

from robustdml_ops.ops import pair_lse_sum
from tests.storages import Storages


@pytest.mark.parametrize(("n", "buffers"), [(512, 1), (2500, 0)])
def test_no_more_than_one_matrix_of_pairs(n, buffers):
    """A batch keeps S alone; beyond one chunk nothing of that size exists, forward or backward."""
    X, y = torch.randn(n, 8, requires_grad=True), torch.arange(n) // 4
    scale, settings = torch.tensor(1.0 / n), {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.1}
    with Storages() as storages:
        pair_lse_sum(X, y, None, None, scale, scale, **settings, backend="native").backward()
    assert sum(size >= 4 * n * n for size in storages.nbytes.values()) == buffers
