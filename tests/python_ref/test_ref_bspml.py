"""The reference of BSPML against loops over pairs, and its stochastic gradient against autograd of the objective."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ref_cases import assert_same, few
from torch.nn.functional import normalize

from python_ref import bspml
from tests.self_paced.cases import Case

cases = st.builds(Case, N=st.integers(1, 9), C=st.integers(1, 5), seed=st.integers(0, 2**32))


@few
@given(case=cases, alpha=st.floats(1, 5), beta=st.floats(5, 60))
def test_terms_are_loops_over_pairs(case, alpha, beta):
    X, ys = normalize(case.X).tolist(), case.labels.tolist()
    positive, negative = bspml.self_paced_terms(case.X, case.labels, alpha, beta, 0.7)
    for a in range(case.N):
        s = [sum(x * y for x, y in zip(X[a], X[p], strict=True)) for p in range(case.N)]
        pull = sum(math.exp(-alpha * (s[p] - 0.7)) for p in range(case.N) if p != a and ys[p] == ys[a])
        push = sum(math.exp(beta * (s[n] - 0.7)) for n in range(case.N) if ys[n] != ys[a])
        assert_same(positive[a].item(), math.log1p(pull) / alpha, 1e-9)
        assert_same(negative[a].item(), math.log1p(push) / beta, 1e-9)


@few
@given(case=cases, epsilon=st.floats(0, 0.5))
def test_batch_loss_is_a_loop_over_informative_pairs(case, epsilon):
    S = (normalize(case.X) @ normalize(case.X).T).tolist()
    w, ys = case.w.tolist(), case.labels.tolist()
    losses = bspml.weighted_batch_loss(case.X, case.labels, case.w, 2.0, 40.0, 0.9, epsilon)
    for i in range(case.N):
        same = [p for p in range(case.N) if p != i and ys[p] == ys[i]]
        other = [n for n in range(case.N) if ys[n] != ys[i]]
        positives = [p for p in same if other and S[i][p] < max(S[i][n] for n in other) + epsilon]
        negatives = [n for n in other if same and S[i][n] > min(S[i][p] for p in same) - epsilon]
        expected = 0.0
        if positives:
            pull = sum(math.exp(-2 * (S[i][p] - 0.9)) for p in positives)
            expected += sum(w[p] for p in positives) / (len(positives) * 2) * math.log1p(pull)
        if negatives:
            push = sum(math.exp(40 * (S[i][n] - 0.9)) for n in negatives)
            expected += sum(w[n] for n in negatives) / (len(negatives) * 40) * math.log1p(push)
        assert_same(losses[i].item(), w[i] * expected, 1e-9)


@few
@given(case=cases, lam=st.floats(0.1, 5), mu=st.floats(0, 5))
def test_objective_is_a_loop_over_samples(case, lam, mu):
    w, positive, negative, ys = (tensor.tolist() for tensor in case.terms())
    members = {c: [i for i in range(case.N) if ys[i] == c] for c in sorted(set(ys))}
    zeta = {c: sum(w[i] for i in of_c) for c, of_c in members.items()}
    total, C = 0.0, len(members)
    for c, of_c in members.items():
        for a in of_c:
            pull = (zeta[c] - w[a]) / (len(of_c) - 1) * positive[a] if len(of_c) > 1 else 0
            push = sum(zeta[k] / len(members[k]) for k in members if k != c) / (C - 1) * negative[a] if C > 1 else 0
            total += w[a] / len(of_c) * (pull + push)
        total -= lam * zeta[c] / len(of_c)
        balance = sum((zeta[c] / len(of_c) - zeta[k] / len(members[k])) ** 2 for k in members if k > c)
        total += mu / (C - 1) * balance if C > 1 else 0
    assert_same(bspml.self_paced_objective(*case.terms(), lam, mu).item(), total)


@few
@given(case=cases, lam=st.floats(0.1, 5), mu=st.floats(0, 5))
def test_with_full_samples_the_stochastic_gradient_is_the_exact_one(case, lam, mu):
    exact = bspml.self_paced_gradient(*case.terms(), lam, mu)
    for a in range(case.N):
        own = ((case.labels == case.labels[a]) & (torch.arange(case.N) != a)).nonzero()[:, 0]
        others = [(case.labels == k).nonzero()[:, 0] for k in case.labels.unique() if k != case.labels[a]]
        assert_same(bspml.stochastic_gradient(*case.terms(), a, own, others, lam, mu), exact[a])


def test_samples_are_without_replacement_and_of_the_right_classes():
    y, random = torch.tensor([0, 0, 0, 1, 1, 3, 2, 2, 2, 2]), torch.Generator().manual_seed(0)
    for _ in range(200):
        a, own, others = bspml.doubly_stochastic_sample(y, 2, 3, random)
        assert a not in own.tolist()
        assert (y[own] == y[a]).all()
        assert len(own) == min(3, int((y == y[a]).sum()) - 1)
        of = [y[n].unique().item() for n in others]
        assert len(set(of)) == 2 and y[a].item() not in of
        for drawn in [own, *others]:
            assert len(drawn.unique()) == len(drawn)


@pytest.mark.parametrize("mu", [pytest.param(0.0, marks=pytest.mark.nightly), 2.0])
def test_algorithm_3_comes_to_rest_where_the_gradient_says_so(mu):
    """With all samples in every step it is coordinate descent; at its end no weight can move downhill."""
    case, lam = Case(10, 3, seed=5), 0.9
    rate = 0.4  # Theorem 1 asks for less than 2 / L_max = 1 / μ: there is a class of one sample
    random = torch.Generator().manual_seed(1)
    w = bspml.doubly_stochastic_descent(*case.terms(), lam, mu, rate, 2000, random, num_classes=9, samples_per_class=9)
    terms = case.terms()[1:]

    def downhill(weights):
        return (weights - (weights - bspml.self_paced_gradient(weights, *terms, lam, mu)).clamp(0, 1)).abs().max()

    assert downhill(case.w) > 0.1
    assert downhill(w) < 0.005
    assert 0 < w.mean() < 1
    assert bspml.self_paced_objective(w, *terms, lam, mu) < bspml.self_paced_objective(case.w, *terms, lam, mu)
