"""How many matrices of all pairs exist at a time."""

import pytest
import torch

from robustdml_ops.ops import pair_lse_sum


class LargeBuffers(torch.utils._python_dispatch.TorchDispatchMode):
    """Addresses of the memory of at least so many bytes that operations return."""

    def __init__(self, nbytes):
        super().__init__()
        self.nbytes, self.seen = nbytes, set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() >= self.nbytes:
                self.seen.add(tensor.untyped_storage().data_ptr())
        return result


@pytest.mark.parametrize(("n", "buffers"), [(512, 1), (2500, 0)])
def test_no_more_than_one_matrix_of_pairs(n, buffers):
    """A batch keeps S alone; beyond one chunk nothing of that size exists, forward or backward."""
    X, y = torch.randn(n, 8, generator=torch.Generator().manual_seed(0), requires_grad=True), torch.arange(n) // 4
    scale = torch.tensor(1.0 / n)
    with LargeBuffers(4 * n * n) as large:
        pair_lse_sum(
            X, y, None, None, scale, scale, alpha=2.0, beta=50.0, base=0.5, epsilon=0.1, backend="native"
        ).backward()
    assert len(large.seen) == buffers
