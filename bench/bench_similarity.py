"""Cosines and the nearest of them: against PyTorch, pytorch-metric-learning, and the product alone."""

import json
import sys

import pytest
import torch
from torch.nn.functional import normalize

from robustdml_ops.ops import nearest, similarity

from .device import DEVICE
from .memory import resident
from .rivals import compiled, cosines

SHAPES = [(256, 100_000, 128), (256, 100_000, 512), (2048, 20_000, 128)]
ALL = (60_000, 128)
K, SLICE = 10, 4000


def matrices(B, C, D, device=DEVICE):
    torch.manual_seed(0)
    return torch.randn(B, D, device=device), torch.randn(C, D, device=device)


def by_pml(X, P):
    from pytorch_metric_learning.distances import CosineSimilarity

    return CosineSimilarity()(X, P)


def nearest_by_pml(X, k):
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.inference import CustomKNN

    return CustomKNN(CosineSimilarity(), batch_size=1024)(X, k, X, True)


def nearest_of(queries, X, first, k):
    """The nearest of rows that begin with row ``first`` of X, a tensor: a number would be compiled again."""
    S = cosines(queries, X)
    itself = first + torch.arange(len(queries), device=X.device)[:, None]
    return S.scatter(1, itself, -torch.inf).topk(k)


def nearest_by_slices(X, k, formula=nearest_of):
    """Of all rows, some thousand at a time: no matrix of all with all."""
    starts = range(0, len(X), SLICE)
    found = [formula(X[start : start + SLICE], X, torch.tensor(start, device=X.device), k) for start in starts]
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


CONTENDERS = {
    "robustdml/similarity": similarity,
    "torch/normalize and multiply": cosines,
    "compile/normalize and multiply": lambda X, P: compiled(cosines)(X, P),
    "pml/CosineSimilarity": by_pml,
}


@pytest.mark.parametrize("contender", CONTENDERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matrix(timed, shape, contender):
    small = matrices(20, 30, 8)
    torch.testing.assert_close(CONTENDERS[contender](*small), cosines(*small))
    (X, P), (B, C, D) = matrices(*shape), shape
    unit = normalize(X)
    with torch.no_grad():
        timed(
            lambda: CONTENDERS[contender](X, P),
            lambda: unit @ P.t(),
            group=f"similarity, B={B} C={C:.0e} D={D}".replace("e+0", "e"),
            contender=contender,
            rounds=15,
            flops=2.0 * B * C * D,
        )


@pytest.mark.parametrize("contender", [contender for contender in CONTENDERS if not contender.startswith("pml/")])
def test_matrix_with_gradients(timed, contender):
    B, C, D = SHAPES[0]
    X, P = (matrix.requires_grad_() for matrix in matrices(B, C, D))
    upstream, unit = torch.randn(B, C, device=DEVICE), normalize(X.detach())

    def step():
        return torch.autograd.grad(CONTENDERS[contender](X, P), (X, P), upstream)

    def products():
        with torch.no_grad():
            return unit @ P.t(), upstream @ P, upstream.t() @ unit

    timed(
        step,
        products,
        group=f"similarity with both gradients, B={B} C={C:.0e} D={D}".replace("e+0", "e"),
        contender=contender,
        flops=6.0 * B * C * D,
    )


def tiles(X):
    """The products of all pairs, tile by tile, all into the same memory."""
    S = X.new_empty(1024, 2048)
    for row in range(0, len(X), 1024):
        for column in range(0, len(X), 2048):
            first, second = X[row : row + 1024], X[column : column + 2048]
            torch.mm(first, second.t(), out=S[: len(first), : len(second)])


NEIGHBOURS = {
    "robustdml/nearest": lambda X, k: nearest(X, X, k, exclude_self=True),
    "torch/by slices": nearest_by_slices,
    "compile/by slices": lambda X, k: nearest_by_slices(X, k, compiled(nearest_of)),
    "pml/CustomKNN": nearest_by_pml,
}


@pytest.mark.parametrize("contender", NEIGHBOURS)
def test_nearest(timed, contender):
    X, _ = matrices(300, 1, 8)
    for mine, other in zip(NEIGHBOURS[contender](X, K), nearest_of(X, X, torch.tensor(0), K), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
    N, D = ALL
    X, _ = matrices(N, 1, D)
    timed(
        lambda: NEIGHBOURS[contender](X, K),
        lambda: tiles(X),
        group=f"nearest, N=M={N:.0e} D={D} k={K}".replace("e+0", "e"),
        contender=contender,
        rounds=3,
        flops=2.0 * N * N * D,
    )


@pytest.mark.parametrize("contender", NEIGHBOURS)
def test_nearest_memory(in_own_process, contender):
    group = f"memory, nearest of N=M={ALL[0]} D={ALL[1]}"
    in_own_process("bench_similarity", contender, group=group, contender=contender)


if __name__ == "__main__":
    torch.set_num_threads(2)
    X, _ = matrices(ALL[0], 1, ALL[1], "cpu")
    NEIGHBOURS[sys.argv[1]](X[:500], K)
    before = resident("VmRSS")
    NEIGHBOURS[sys.argv[1]](X, K)
    peak, mb = resident("VmHWM"), 1 / 2**20
    figures = {"process_mb": peak, "inputs_and_gradients_mb": X.nbytes, "beyond_mb": peak - before}
    print(json.dumps({name: size * mb for name, size in figures.items()}))
