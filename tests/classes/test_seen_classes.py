"""Nearest other classes, and how many are nearer than the own one, from the sweep that makes the log-sum-exps."""

import pytest
import torch

from robustdml_ops.ops import class_lse
from robustdml_ops.ops.classes.sweep import ClassSeen
from tests.classes.seen import SEEN, check_seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", SEEN)
def test_as_the_whole_matrix(name, backend, dtype):
    check_seen(name, backend, dtype, device=torch.device("cpu"))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_over_many_chunks_and_blocks(backend):
    check_seen("none of 1, one label", backend, device=torch.device("cpu"))
    check_seen("none of 1, bounded", backend, device=torch.device("cpu"))


@pytest.mark.parametrize("scale", [8.0, 900.0])
@pytest.mark.parametrize("backend", ["native", "eager"])
def test_the_sums_keep_their_bits(backend, scale):
    """Bounded logits and others; by lanes and in chunks."""
    torch.manual_seed(0)
    X, P, y = torch.randn(9, 6, requires_grad=True), torch.randn(300, 6, requires_grad=True), torch.arange(9)
    found = []
    for seen in (None, ClassSeen.of(torch.zeros(9))):
        sums = class_lse(X, P, y, scale=scale, backend=backend, seen=seen)
        found.append([*sums, *torch.autograd.grad((sums.lse - sums.target).sum(), (X, P))])
    for plain, observed in zip(*found, strict=True):
        assert torch.equal(plain, observed)


def test_a_graph_sees_nothing():
    X, P, y = torch.randn(2, 3), torch.randn(4, 3), torch.arange(2)
    with pytest.raises(RuntimeError, match="observe a step in eager mode"):
        torch.func.grad(lambda X: class_lse(X, P, y, seen=ClassSeen.of(torch.zeros(2))).lse.sum())(X)
