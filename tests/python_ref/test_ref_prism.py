import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ref_cases import assert_same, few

from python_ref import prism


class Case:
    """A batch, a bank in which the last class is missing, and proxies."""

    def __init__(self, B, C, D, m, seed):
        random = torch.Generator().manual_seed(seed)
        self.C = C
        self.X = torch.randn(B, D, generator=random, dtype=torch.float64)
        self.y = torch.randint(C, (B,), generator=random)
        self.V = torch.randn(m, D, generator=random, dtype=torch.float64)
        self.y_V = torch.randint(C - 1, (m,), generator=random)
        self.P = torch.randn(C, 3, D, generator=random, dtype=torch.float64)


cases = st.builds(
    Case,
    B=st.integers(1, 7),
    C=st.integers(2, 5),
    D=st.integers(2, 4),
    m=st.integers(1, 9),
    seed=st.integers(0, 2**32),
)


def test_a_class_that_is_not_in_the_bank():
    none = -math.inf
    T = torch.tensor([[0.5, 0.6, none], [0.5, 0.8, none], [0.5, 0.6, none]], dtype=torch.float64)
    log_p = prism.log_p_clean(T, torch.tensor([0, 1, 2]))
    expected = [-math.log(1 + math.exp(0.1)), -math.log(1 + math.exp(-0.3)), 0.0]
    assert_same(log_p, torch.tensor(expected, dtype=torch.float64))
    # The public code: the class without rows adds e⁰ to the denominator.
    zero = prism.log_p_clean(T, torch.tensor([0, 1, 2]), unseen="zero")
    sums = [math.exp(0.5) + math.exp(0.6) + 1, math.exp(0.5) + math.exp(0.8) + 1]
    assert_same(zero, torch.tensor([0.5 - math.log(sums[0]), 0.8 - math.log(sums[1]), 0.0], dtype=torch.float64))


@few
@given(cases)
def test_means_stand_for_all_pairs(case):
    T = prism.average_similarity(case.X, case.V, case.y_V, case.C)
    memory_positive = prism.memory_positive_similarity(case.X, case.y, case.V, case.y_V)
    for i, x in enumerate(case.X):
        for k in range(case.C):
            pairs = torch.cosine_similarity(x[None], case.V)[case.y_V == k].tolist()
            assert_same(T[i, k].item(), sum(pairs) / len(pairs) if pairs else -math.inf)
            if case.y[i] == k:
                assert_same(memory_positive[i].item(), sum(pairs) / len(pairs) if pairs else 1.0)


@few
@given(cases, st.sampled_from(["average", "proxy", "vmf", "vmf u"]), st.sampled_from(["skip", "zero"]))
def test_p_clean_sums_to_one_over_the_classes_that_count(case, kind, unseen):
    similarity = {
        "average": lambda: prism.average_similarity(case.X, case.V, case.y_V, case.C),
        "proxy": lambda: prism.proxy_similarity(case.X, case.P),
        "vmf": lambda: prism.vmf_similarity(case.X, case.V, case.y_V, case.C),
        "vmf u": lambda: prism.vmf_similarity(case.X, case.V, case.y_V, case.C, "u"),
    }[kind]()
    known = (similarity > -math.inf).all(0)
    by_label = [prism.log_p_clean(similarity, torch.full((len(case.X),), k), unseen).exp() for k in range(case.C)]
    total = sum(by_label[k] for k in range(case.C) if known[k])
    if unseen == "skip" or known.all():
        assert_same(total, torch.ones_like(total))
    else:
        assert (total < 1).all()
    for k in range(case.C):
        if not known[k]:
            assert by_label[k].tolist() == [1.0] * len(case.X)


def test_vmf_similarity_by_hand():
    # D = 3: C_3(κ) = κ / (4π sinh κ). Two unit vectors at a right angle: R̄ = 1/√2, κ = R̄ (3 − R̄) / (1 − 1/2).
    V = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    X = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, -1.0]], dtype=torch.float64)
    log_density = prism.vmf_similarity(X, V, torch.tensor([0, 0, 1]), 3)
    R = math.sqrt(0.5)
    kappa = 2 * R * (3 - R)
    log_C = math.log(kappa / (4 * math.pi * math.sinh(kappa)))
    uniform = -math.log(4 * math.pi)  # one vector has no spread
    expected = [[log_C + kappa, uniform, -math.inf], [log_C, uniform, -math.inf]]
    assert_same(log_density, torch.tensor(expected, dtype=torch.float64))
    # R̄² corrected for two samples: (2 · 1/2 − 1) / (2 − 1) = 0.
    corrected = prism.vmf_similarity(X, V, torch.tensor([0, 0, 1]), 3, "u")
    assert_same(corrected[:, :2], torch.full((2, 2), uniform, dtype=torch.float64), 1e-7)


def test_batch_positive_leaves_a_sample_itself_out():
    X = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.6, 0.8], [1.0, 0.0]], dtype=torch.float64)
    scores = prism.batch_positive_similarity(X, torch.tensor([0, 0, 0, 1]))
    assert_same(scores, torch.tensor([0.3, 0.4, 0.7, 1.0], dtype=torch.float64))


@few
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.integers(0, 100))
def test_top_r_removes_the_lowest_and_their_ties(values, percent):
    scores = torch.tensor(values, dtype=torch.float64)
    threshold = prism.top_r_threshold(scores, percent / 100)
    clean = prism.is_clean(scores, threshold, torch.ones(len(values), dtype=torch.bool))
    removed = percent * len(values) // 100
    limit = sorted(values)[removed - 1] if removed else -math.inf
    assert clean.tolist() == [value > limit for value in values]
    assert (~clean).sum() >= removed


def test_top_r_of_nobody_and_of_a_decimal_share():
    assert prism.top_r_threshold(torch.zeros(0), 0.5) == -math.inf
    # The 29th smallest, although 0.29 · 100 < 29 in floats.
    assert prism.top_r_threshold(torch.arange(100.0), 0.29) == 28


@pytest.mark.parametrize("noise_rate", [-0.1, 1.5, math.nan])
def test_noise_rates_outside_the_unit_interval_are_refused(noise_rate):
    with pytest.raises(ValueError, match=r"noise_rate must lie in \[0, 1\]"):
        prism.top_r_threshold(torch.zeros(3), noise_rate)


@few
@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=5))
def test_queue_keeps_the_latest(capacity, sizes):
    queue, rows = prism.MemoryQueue(capacity), []
    for step, size in enumerate(sizes):
        vectors = torch.full((size, 1), float(step))
        labels = torch.arange(size)
        queue.enqueue(vectors, labels, labels % 3 != 1)
        rows += [(step, label) for label in range(size) if label % 3 != 1]
    assert [(int(vector), label) for vector, label in queue.rows] == rows[-capacity:]
    assert queue.labels().tolist() == [label for _, label in rows[-capacity:]]


def test_the_filter_of_the_authors_code_by_hand():
    def run(p, window, noise_rate=0.5, size=3):
        keep, window = prism.authors_filter(torch.tensor(p, dtype=torch.float64), window, noise_rate, size)
        return keep.tolist(), window

    # No window, and the quantile falls on a new class: ranks decide, new classes among them, and nothing is stored.
    assert run([1, 1, 0.2, 1], []) == ([False, True, False, True], [])
    assert run([1, 1, 1, 1], []) == ([False, False, True, True], [])
    # A quantile of its own is the mean: what is above it stays.
    assert run([0.4, 0.1, 0.2, 1], []) == ([True, False, False, True], [0.2])
    # With a window the quantile on a new class is left out, and new classes stay.
    assert run([1, 1, 0.2, 1], [0.3]) == ([True, True, False, True], [0.3])
    # The oldest leaves.
    assert run([0.4, 0.1, 0.2, 1], [0.5, 0.1, 0.2]) == ([True, False, True, True], [0.1, 0.2, 0.2])
    # The mean keeps none: ranks decide, and the window forgets.
    assert run([0.1, 0.2, 0.3, 0.4], [0.9, 0.9]) == ([False, False, True, True], [0.2])
    # 0.29 · 100 is 28.999999999999996, and their code takes 28.
    assert sum(run([i / 200 for i in range(100)], [], 0.29)[0]) == 72
