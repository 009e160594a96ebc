"""The matrix of cosines: values, types, memory, gradients to any order, exported."""

import pytest
import torch

from robustdml_ops.ops import similarity
from tests.subprocesses import megabytes_beyond


def matrices(B, C, D, dtype=torch.float32, device="cpu"):
    return torch.randn(B, D).mul(3).to(device, dtype), torch.randn(C, D).mul(0.1).to(device, dtype)


def cosines(X, P):
    return torch.nn.functional.cosine_similarity(X.double()[:, None], P.double()[None], dim=2)


def assert_rows_without_a_direction(backend, device="cpu"):
    """Zero rows have cosine 0 with everything and no gradient; NaN stays NaN."""
    X, P = matrices(5, 6, 3, device=device)
    X[1], X[2], P[2] = 0, 1e-39, 0
    P[4, 1], X[3, 0] = torch.inf, torch.nan
    S = similarity(X.requires_grad_(), P, backend=backend)
    finite = [0, 1, 2, 3, 5]
    assert (S[1:3, finite] == 0).all()
    assert (S[[0, 1, 2, 4], 2] == 0).all()
    assert S[:, 4].isnan().all()
    assert S[3].isnan().all()
    similarity(X, P[finite], backend=backend)[[0, 1, 2, 4]].sum().backward()
    assert (X.grad[1:3] == 0).all() and (X.grad[0] != 0).all()


def test_the_type_asked_for(backend):
    """Those of mixed types without one are tried in tests/fuzz."""
    X, P = matrices(5, 9, 4)
    rounded = similarity(X, P, dtype=torch.bfloat16, backend=backend)
    assert torch.equal(rounded, similarity(X, P, backend=backend).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert similarity(X, P, backend=backend).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"dtype must be a floating-point type, got torch\.int64"):
        similarity(X, P, dtype=torch.int64)


def test_rows_of_zeros_and_what_is_not_finite(backend):
    assert_rows_without_a_direction(backend)


def test_several_chunks(backend):
    """Three chunks of proxies; small matrices of every type are tried in tests/fuzz."""
    X, P = matrices(33, 5000, 128)
    torch.testing.assert_close(similarity(X, P, backend=backend).double(), cosines(X, P), rtol=0, atol=1e-6)


def test_gradients_of_several_chunks(backend):
    X, P = (matrix.double().requires_grad_() for matrix in matrices(7, 5000, 128))
    upstream = torch.randn(7, 5000, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad(S, (X, P), upstream) for S in (similarity(X, P, backend=backend), cosines(X, P))
    )
    torch.testing.assert_close(ours, theirs)


def test_bad_columns():
    X, _ = matrices(4, 6, 3)
    with pytest.raises(ValueError, match="proxies must have 3 columns"):
        similarity(X, torch.ones(3, 4))


def third_derivative(function, x):
    """Gradient of the sum of the gradient of the sum of the gradient of ``function``, a scalar of ``x``."""
    grad = torch.func.grad
    return grad(lambda y: grad(lambda z: grad(function)(z).sum())(y).sum())(x)


def test_gradients_to_any_order(backend):
    X, P = (matrix.double().requires_grad_() for matrix in matrices(4, 5, 3))
    cosine = lambda x, p: similarity(x, p, backend=backend)  # noqa: E731
    assert torch.autograd.gradcheck(cosine, (X, P))
    assert torch.autograd.gradgradcheck(cosine, (X, P))
    constant = P.detach()
    ours = third_derivative(lambda x: (cosine(x, constant) ** 3).sum(), X.detach())
    dense = torch.nn.functional.cosine_similarity
    theirs = third_derivative(lambda x: (dense(x[:, None], constant[None], dim=2) ** 3).sum(), X.detach())
    torch.testing.assert_close(ours, theirs)


def test_empty():
    for B, C in ((0, 5), (5, 0)):
        X, P = (matrix.requires_grad_() for matrix in matrices(B, C, 3))
        S = similarity(X, P)
        assert S.shape == (B, C)
        S.sum().backward()
        assert (X.grad == 0).all()
        assert (P.grad == 0).all()


def test_exports_as_one_op():
    class Module(torch.nn.Module):
        def forward(self, x, p):
            return similarity(x, p)

    exported = torch.export.export(Module(), matrices(6, 40, 3))
    ops = [node.target for node in exported.graph.nodes if node.op == "call_function"]
    assert ops == [torch.ops.robustdml_ops.similarity.default]


@pytest.mark.parametrize("columns", [False, True])
def test_registered_op(columns):
    registered = torch.ops.robustdml_ops

    X, P = (x.t().contiguous().t() if columns else x for x in matrices(4, 6, 3))
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(registered.similarity.default, (X, P, torch.float32, "auto"), test_utils=tests)
    torch.library.opcheck(
        registered.similarity_gradient.default, (X, P, torch.randn(4, 6), [True, True], "auto"), test_utils=tests
    )


def test_memory_is_that_of_the_result():
    """Beyond inputs of 51 MB and a result of 26 MB no copy of the proxies, and nothing else of size B×C."""
    setup = "X, P = torch.randn(64, 128), torch.randn(100_000, 128)"
    assert megabytes_beyond(setup, "ops.similarity(X, P[:1000])", "ops.similarity(X, P)") < 26 + 8
