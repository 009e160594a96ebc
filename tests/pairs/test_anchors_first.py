"""Anchors that are the first of the candidates: a part of a batch, against the whole batch with itself."""

import pytest
import torch

from robustdml_ops.ops import pair_hinge, pair_hinge_sum, pair_lse, pair_lse_sum

B, D = 23, 4
KINDS = {
    "lse": (pair_lse, {"alpha": 2.0, "beta": 5.0, "base": 0.5}),
    "mined": (pair_lse, {"alpha": 2.0, "beta": 5.0, "base": 0.5, "epsilon": 0.1}),
    "cosine": (pair_hinge, {"positive_margin": 0.9, "negative_margin": 0.1}),
    "euclidean": (pair_hinge, {"positive_margin": 0.1, "negative_margin": 1.4, "distance": "euclidean"}),
}


def batch(dtype=torch.float64):
    X = torch.randn(B, D, dtype=dtype)
    X[5] = X[4]  # a pair without a distance
    return X, torch.randint(4, (B,))


def parts(n):
    """The batch in three parts that have n, 0 and the other samples as anchors: rows and labels, anchors first."""
    for first, last in ((0, n), (n, n), (n, B)):
        order = torch.cat([torch.arange(first, last), torch.arange(first), torch.arange(last, B)])
        yield slice(first, last), order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 9, 22])
def test_parts_of_a_batch_make_the_whole(small_chunks, kind, backend, n):
    """Sums of every anchor, and gradients of all rows as anchors and candidates."""
    op, settings = KINDS[kind]
    X, labels = batch()
    whole = X.clone().requires_grad_()
    expected = op(whole, labels, backend=backend, **settings)
    upstream = torch.linspace(1, 2, B, dtype=torch.float64)
    (expected.positive * upstream + expected.negative * upstream.flip(0)).sum().backward()
    found = X.clone().requires_grad_()
    for own, order in parts(n):
        pairs = (found[own], labels[own], found[order], labels[order])
        sums = op(*pairs, anchors_first=True, backend=backend, **settings)
        torch.testing.assert_close([*sums], [exact[own] for exact in expected], rtol=1e-11, atol=1e-12)
        (sums.positive * upstream[own] + sums.negative * upstream.flip(0)[own]).sum().backward()
    torch.testing.assert_close(found.grad, whole.grad, rtol=1e-9, atol=1e-10)


def test_weighted_sums_in_one_sweep(small_chunks, backend):
    X, labels = batch(torch.float32)
    scales = torch.rand(2, B)
    for op, (_, settings) in ((pair_lse_sum, KINDS["mined"]), (pair_hinge_sum, KINDS["cosine"])):
        expected = op(X, labels, None, None, *scales, backend=backend, **settings)
        pairs = ((X[own], labels[own], X[order], labels[order], *scales[:, own]) for own, order in parts(9))
        found = sum(op(*each, anchors_first=True, backend=backend, **settings) for each in pairs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_what_can_not_be():
    X, labels = batch()
    settings = KINDS["lse"][1]
    with pytest.raises(ValueError, match="anchors_first without candidates"):
        pair_lse(X, labels, anchors_first=True, **settings)
    with pytest.raises(ValueError, match="the first candidates are the 23 anchors, and there are 5 candidates"):
        pair_lse(X, labels, X[:5], labels[:5], anchors_first=True, **settings)
