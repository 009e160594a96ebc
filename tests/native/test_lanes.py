"""Sweeps by lanes on the CPU: the same numbers as a chunk at a time, the same bits twice, and nothing left changed."""

import ctypes
import os
import threading

import pytest
import torch

from robustdml_ops.backends import native_module
from robustdml_ops.losses import ProxyAnchorLoss
from robustdml_ops.ops import nearest, similarity
from tests.losses.cases import make_case

pytestmark = pytest.mark.skipif(native_module.library is None, reason="the native module is not built")
B, C, D = 23, 61, 12
THREADS = (1, 2, 3, 16)
MATRICES = ("proxy-anchor", "smooth", "smooth-factored", "proxy-nca", "soft-triple")
PAIRS = ("contrastive", "contrastive, a bank", "ms", "ms, a bank", "memory-paper, a bank")
CASES = (*MATRICES, "proxy-anchor, each", "proxy-anchor, by columns", *PAIRS)


def case(name, dtype, classes=C, m=97):
    """A loss and its inputs; some samples are absent."""
    kind, _, way = name.partition(", ")
    reduction, of_pairs = "none" if way == "each" else "mean", name in PAIRS
    options = {"dtype": dtype, "reduction": reduction, "weighted": True} | ({"m": m} if of_pairs else {})
    made = make_case(name if of_pairs else kind, B, 7 if of_pairs else classes, D, **options)
    if way == "by columns":
        made.module.proxies = torch.nn.Parameter(made.parameter.detach().t().contiguous().t())
    return made


def value_and_gradients(case):
    value = case.ours()
    return [value.detach(), *case.gradients(value)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_as_a_chunk_at_a_time(name, dtype, threads, monkeypatch):
    """Each number of threads agrees with PyTorch's products of one chunk after the other."""
    made = case(name, dtype)
    with monkeypatch.context() as patch:
        patch.setattr(native_module, "matrix_product", lambda dtype: 0)
        chunks = value_and_gradients(made)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    for count in THREADS:
        threads(count)
        for ours, theirs in zip(value_and_gradients(made), chunks, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits_while_others_are_busy(name, threads):
    """The result does not depend on which thread takes which chunk."""
    threads(3)
    made = case(name, torch.float32)
    first = value_and_gradients(made)
    stop = threading.Event()
    busy = [threading.Thread(target=spin, args=(stop,)) for _ in range(3)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(20):
            torch.testing.assert_close(value_and_gradients(made), first, rtol=0, atol=0)
    finally:
        stop.set()
        for thread in busy:
            thread.join()


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", ["proxy-anchor", "smooth", "proxy-nca", "memory-paper, a bank"])
def test_as_many_lanes_as_a_server_has(name, threads):
    """64 lanes, of which some have two chunks and some one, give what one lane gives, and the same bits twice."""
    made = case(name, torch.float32, 700, 700)
    threads(1)
    alone = value_and_gradients(made)
    threads(64)
    together, again = (value_and_gradients(made) for _ in range(2))
    torch.testing.assert_close(together, again, rtol=0, atol=0)
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
        torch.testing.assert_close(by_lanes[-1], by_lanes[0], rtol=0, atol=0)
    S, values, indices = by_lanes[0]
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close((S, values), chunks[:2], rtol=0, atol=tolerance)
    # 4 and 5 point the same way, and which of them comes first is rounding.
    same = (torch.where(places % C == 5, places - 1, places) for places in (indices, chunks[2]))
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
