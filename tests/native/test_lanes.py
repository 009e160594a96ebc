"""Sweeps by lanes on the CPU: the same numbers as a chunk at a time, the same bits twice, and nothing left changed."""

import ctypes
import os
import threading

import pytest
import torch

from robustdml_ops.backends import native_module
from robustdml_ops.losses import (
    ContrastiveLoss,
    MemoryContrastiveLoss,
    MultiSimilarityLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SmoothProxyAnchorLoss,
    SoftTripleLoss,
)
from robustdml_ops.ops import ABSENT, nearest, similarity

pytestmark = pytest.mark.skipif(native_module.library is None, reason="the native module is not built")
B, C, D, M = 23, 61, 12, 97
THREADS = (1, 2, 3, 16)


def labels(count, classes=C):
    y = torch.randint(classes, (count,))
    return y.masked_fill(torch.rand(count) < 0.1, ABSENT)


def of_proxies(kind, X, P, target, classes=C, **settings):
    loss = kind(classes, D, **settings).to(X.dtype)
    return lambda X, P: with_proxies(loss, P)(X, target).sum(), (X, P)


def by_columns(X, P, y):
    step, (X, P) = of_proxies(ProxyAnchorLoss, X, P, y)
    return lambda X, P: step(X, P.t()), (X, P.t().contiguous())


def factored(X, P, y):
    given = [torch.randn(*shape, dtype=X.dtype) for shape in ((B, 5), (C, 5), (C,))]
    return of_proxies(SmoothProxyAnchorLoss, X, P, tuple(given))


def soft_triple(X, P, y):
    loss = SoftTripleLoss(C, D, centers_per_class=3).to(X.dtype)
    return lambda X: loss(X, y), (X,)


def of_batch(loss, X):
    y = labels(B, 7)
    return lambda X: loss(X, y), (X,)


def of_bank(loss, X):
    y, bank_labels = labels(B, 7), labels(M, 7)
    return lambda X, bank: loss(X, y, None, bank, bank_labels), (X, torch.randn(M, D, dtype=X.dtype))


CASES = {
    "proxy-anchor": lambda X, P, y: of_proxies(ProxyAnchorLoss, X, P, y),
    "proxy-anchor none": lambda X, P, y: of_proxies(ProxyAnchorLoss, X, P, y, reduction="none"),
    "by columns": by_columns,
    "smooth dense": lambda X, P, y: of_proxies(SmoothProxyAnchorLoss, X, P, torch.rand(B, C, dtype=X.dtype)),
    "smooth factored": factored,
    "proxy-nca": lambda X, P, y: of_proxies(ProxyNCALoss, X, P, y),
    "soft-triple": soft_triple,
    "contrastive": lambda X, P, y: of_batch(ContrastiveLoss(), X),
    "contrastive bank": lambda X, P, y: of_bank(ContrastiveLoss(), X),
    "multi-similarity": lambda X, P, y: of_batch(MultiSimilarityLoss(), X),
    "multi-similarity bank": lambda X, P, y: of_bank(MultiSimilarityLoss(), X),
    "memory": lambda X, P, y: of_bank(MemoryContrastiveLoss(), X),
}


def case(name, dtype):
    """A loss as a function of its inputs, and the inputs."""
    return CASES[name](torch.randn(B, D, dtype=dtype), torch.randn(C, D, dtype=dtype), torch.randint(C, (B,)))


def with_proxies(loss, P):
    del loss.proxies
    loss.proxies = P
    return loss


def value_and_gradients(step, inputs):
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    value = step(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_as_a_chunk_at_a_time(name, dtype, threads, monkeypatch):
    """Each number of threads agrees with PyTorch's products of one chunk after the other."""
    step, inputs = case(name, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(native_module, "matrix_product", lambda dtype: 0)
        chunks = value_and_gradients(step, inputs)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    for count in THREADS:
        threads(count)
        for ours, theirs in zip(value_and_gradients(step, inputs), chunks, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_while_others_are_busy(name, threads):
    """The result does not depend on which thread takes which chunk."""
    threads(3)
    step, inputs = case(name, torch.float32)
    first = value_and_gradients(step, inputs)
    stop = threading.Event()
    busy = [threading.Thread(target=spin, args=(stop,)) for _ in range(3)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(20):
            for ours, before in zip(value_and_gradients(step, inputs), first, strict=True):
                assert torch.equal(ours, before)
    finally:
        stop.set()
        for thread in busy:
            thread.join()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", [ProxyAnchorLoss, SmoothProxyAnchorLoss, ProxyNCALoss, MemoryContrastiveLoss])
def test_as_many_lanes_as_a_server_has(kind, threads):
    """64 lanes, of which some have two chunks and some one, give what one lane gives, and the same bits twice."""
    X, P, y = torch.randn(B, D), torch.randn(700, D), torch.randint(700, (B,))
    if kind is MemoryContrastiveLoss:
        loss, bank_labels = kind(), torch.randint(20, (700,))

        def step(X, P):
            return loss(X, y % 20, None, P, bank_labels)
    else:
        target = torch.rand(B, 700) if kind is SmoothProxyAnchorLoss else y
        step, _ = of_proxies(kind, X, P, target, classes=700)
    threads(1)
    alone = value_and_gradients(step, (X, P))
    threads(64)
    together, again = (value_and_gradients(step, (X, P)) for _ in range(2))
    assert all(map(torch.equal, together, again))
    for ours, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("columns", [False, True])
def test_similarities_and_the_nearest(columns, dtype, threads, monkeypatch):
    """As by PyTorch's products, and the same bits for each number of threads; equal rows come by their index."""
    X, P = torch.randn(B, D, dtype=torch.promote_types(dtype, torch.float32)), torch.randn(C, D)
    P[5], P[7] = 1e-30 * P[4], 0
    P = torch.cat([P, P]).to(dtype)
    P = P.t().contiguous().t() if columns else P
    with monkeypatch.context() as patch:
        patch.setattr(native_module, "matrix_product", lambda dtype: 0)
        chunks = similarity(X, P), *nearest(X, P, 20)
    by_lanes = []
    for count in THREADS:
        threads(count)
        by_lanes.append((similarity(X, P), *nearest(X, P, 20)))
        assert all(map(torch.equal, by_lanes[-1], by_lanes[0]))
    S, values, indices = by_lanes[0]
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close((S, values), chunks[:2], rtol=0, atol=tolerance)
    # 4 and 5 point the same way, and which of them comes first is rounding.
    same = (
        torch.where(indices % C == 5, indices - 1, indices),
        torch.where(chunks[2] % C == 5, chunks[2] - 1, chunks[2]),
    )
    assert torch.equal(*(places.sort(1).values for places in same))


def spin(stop):
    A = torch.randn(64, 64)
    while not stop.is_set():
        A @ A


def test_nothing_of_the_process_is_changed(threads):
    """Threads of PyTorch, of OpenMP and of MKL, and where they may run, with two callers at once."""
    threads(2)
    before = state()
    found, errors = [], []

    def train():
        try:
            loss = ProxyAnchorLoss(3000, 16)
            for _ in range(10):
                loss(torch.randn(8, 16), torch.randint(3000, (8,))).backward()
            found.append(state())
        except BaseException as error:  # a thread's own would be lost
            errors.append(error)

    callers = [threading.Thread(target=train) for _ in range(2)]
    for caller in callers:
        caller.start()
    train()
    for caller in callers:
        caller.join()
    assert not errors
    assert state() == before
    assert len(found) == 3
    assert all(of_thread[1:] == before[1:] for of_thread in found)


def state():
    """Numbers of threads, and processors that this thread may run on."""
    mkl = native_module.set_threads()
    local = None
    if mkl:
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(mkl)
        local = function(0)
        function(local)
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return local, torch.get_num_threads(), affinity


def test_lanes_serve_here():
    """On x86 Linux the wheels of PyTorch show their product: without this the tests above would compare nothing."""
    if os.uname().sysname != "Linux" or os.uname().machine != "x86_64":
        pytest.skip("other builds of PyTorch need not have the symbols")
    assert native_module.matrix_product(torch.float32)
    assert native_module.matrix_product(torch.float64)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "threads", "expected"),
    [
        (10**5, 4 * (256 + 2 * 128), 2, 256),  # cached, and fast
        (10**5, 4 * (4096 + 2 * 128), 2, 96),  # long rows: few, but not so few that products are slow
        (200, 4 * (128 + 2 * 64), 2, 100),  # few rows are shared
        (300, 4 * (2048 + 2 * 128), 2, 76),  # the same number of chunks for each thread
        (200, 4 * (128 + 2 * 64), 64, 64),  # but not among all threads of a large machine
        (10, 400, 8, 163),
    ],
)
def test_chunks_fit_the_cache_of_one_core(rows, row_bytes, threads, expected):
    assert native_module.lane_rows(rows, row_bytes, threads) == expected


@pytest.mark.parametrize("name", ["proxy-anchor", "proxy-nca", "memory"])
@pytest.mark.usefixtures("small_chunks")
def test_rows_of_any_length_among_others(name):
    """A row out of reach for products with rows as they are is normalised first, in its lane."""
    step, (X, P) = case(name, torch.float32)
    P = P * torch.logspace(-30, 30, len(P))[:, None]
    value, dX, dP = value_and_gradients(step, (X, P))
    exact, exact_dX, exact_dP = value_and_gradients(step, (X.double(), P.double()))
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dX.double(), exact_dX, rtol=1e-4, atol=1e-5 * float(exact_dX.abs().max()))
    length = P.double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(dP.double() * length, exact_dP * length, rtol=1e-3, atol=1e-5)
