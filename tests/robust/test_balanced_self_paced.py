"""Weights of the training samples: the outer loop of BSPML against its reference, its age, its state and its limits."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from states import assert_same_state, load_saved, needs_gpu
from states import clusters as clusters_of

from python_ref.bspml import average_weights, next_age, self_paced_objective, self_paced_terms
from robustdml_ops.ops import self_paced_sweep
from robustdml_ops.robust import BalancedSelfPaced

clusters = partial(clusters_of, classes=12, size=10, D=16, spread=0.08, wrong=0.2)


def test_wrong_labels_lose_their_weight_and_right_ones_keep_it():
    """By either solver, and the objective is as low."""
    embeddings, labels, true = clusters()
    wrong = labels != true
    positive, negative = self_paced_terms(embeddings, labels)
    objectives = []
    for solver in ("stochastic", "exact"):
        paced = BalancedSelfPaced(labels, lam=2.6, growth=1.0, lam_max=2.6, mu=0.5, solver=solver)
        assert (paced.sample_weights == 1).all()
        paced.update(embeddings)
        w = paced.sample_weights
        assert ((w >= 0) & (w <= 1)).all()
        assert w[wrong].mean() < 0.2
        assert w[~wrong].mean() > 0.9
        torch.testing.assert_close(paced.positive, positive)
        torch.testing.assert_close(paced.negative, negative, rtol=1e-5, atol=1e-7)
        objectives.append(self_paced_objective(w.double(), positive.double(), negative.double(), labels, 2.6, 0.5))
    assert abs(objectives[0] - objectives[1]) < 0.02 * abs(objectives[1])


@pytest.mark.parametrize("solver", ["stochastic", "exact"])
def test_the_balance_term_lowers_sdaw(solver):
    embeddings, labels, _ = clusters()
    sdaw = []
    for mu in (0.0, 2.6):
        paced = BalancedSelfPaced(labels, lam=2.3, growth=1.0, lam_max=2.3, mu=mu, solver=solver)
        paced.update(embeddings)
        maw, expected = average_weights(paced.sample_weights, labels)
        assert paced.maw == pytest.approx(maw.item(), abs=1e-6)
        assert paced.sdaw == pytest.approx(expected.item(), abs=1e-6)
        sdaw.append(paced.sdaw)
    assert sdaw[0] > 2 * sdaw[1]


def test_a_stochastic_update_has_the_documented_steps():
    embeddings, labels, _ = clusters(classes=3, size=4)
    samples, pairs = {"classes_per_step": 2, "samples_per_class": 3}, {"alpha": 3.0, "beta": 20.0, "base": 0.6}
    settings = {"lam_max": 3.0, "mu": 8.0, "steps": 200, "seed": 5, "learning_rate": 0.2, **samples, **pairs}
    paced = BalancedSelfPaced(labels, 1.5, solver="stochastic", **settings)
    paced.update(embeddings)
    torch.testing.assert_close((paced.positive, paced.negative), self_paced_terms(embeddings, labels, **pairs))
    sizes = torch.bincount(labels).double()
    rates = {**samples, "learning_rate": 0.2 * sizes * (sizes / 16).clamp(max=1), "decay": 20 / 200}
    terms = (torch.ones(len(labels)), paced.positive, paced.negative, labels)
    expected = self_paced_sweep(*terms, lam=1.5, mu=8.0, steps=200, seed=5 << 32, **rates)
    assert torch.equal(paced.sample_weights, expected)


def test_a_higher_age_admits_more():
    embeddings, labels, _ = clusters()
    paced = BalancedSelfPaced(labels, lam=1.5, growth=1.3, lam_max=4.0, mu=0.0)
    means, age = [], 1.5
    for _ in range(6):
        assert float(paced.lam) == age
        paced.update(embeddings)
        means.append(paced.maw)
        age = next_age(age, 1.3, 4.0)
    assert float(paced.lam) == 4.0
    assert int(paced.iteration) == 6
    assert means == sorted(means)
    assert means[0] < 0.7 < 0.95 < means[-1]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    solver=st.sampled_from(["stochastic", "exact"]),
    lam=st.floats(0.1, 5),
    mu=st.floats(0, 5),
    seed=st.integers(0, 2**31 - 1),
)
def test_any_classes_give_weights_in_range(sizes, solver, lam, mu, seed):
    """Single samples, a single class, empty classes; zero vectors and equal ones."""
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(len(labels), 3, generator=generator)
    embeddings[::3] = 0
    paced = BalancedSelfPaced(labels, lam, 1.1, 6.0, mu, solver=solver, seed=seed, steps=200)
    for _ in range(2):
        paced.update(embeddings)
    assert ((paced.sample_weights >= 0) & (paced.sample_weights <= 1)).all()
    assert 0 <= paced.maw <= 1
    assert 0 <= paced.sdaw <= 0.5
    single = torch.bincount(labels)[labels] == 1
    assert (paced.positive[single] == 0).all()
    if sum(map(bool, sizes)) == 1:
        assert (paced.negative == 0).all()


@pytest.mark.parametrize(("solver", "cut"), [("stochastic", 1), ("exact", 3)])
def test_resumes_bit_for_bit(solver, cut):
    def make():
        return BalancedSelfPaced(labels, 2.0, 1.2, 4.0, 1.0, solver=solver, seed=9)

    batches = [clusters(seed=seed)[0] for seed in range(4)]
    labels = clusters()[1]
    unbroken, broken, resumed = make(), make(), make()
    for embeddings in batches:
        unbroken.update(embeddings)
    for embeddings in batches[:cut]:
        broken.update(embeddings)
    load_saved(resumed, broken.state_dict())
    for embeddings in batches[cut:]:
        resumed.update(embeddings)
    assert_same_state(unbroken, resumed)


def test_seeds_and_updates_have_random_numbers_of_their_own():
    embeddings, labels, _ = clusters()

    def weights(seed, updates):
        paced = BalancedSelfPaced(labels, 2.6, 1.0, 2.6, 2.0, solver="stochastic", seed=seed, steps=300)
        for _ in range(updates):
            paced.sample_weights.fill_(1)
            paced.update(embeddings)
        return paced.sample_weights

    assert torch.equal(weights(1, 1), weights(1, 1))
    assert not torch.equal(weights(1, 1), weights(2, 1))
    assert not torch.equal(weights(1, 1), weights(1, 2))


def test_batches_stand_in_for_the_whole():
    """The whole training set as one batch gives the exact terms; what no batch had is left alone."""
    embeddings, labels, _ = clusters()
    exact, observed = (BalancedSelfPaced(labels, 2.6, 1.0, 2.6, 0.5) for _ in range(2))
    exact.update(embeddings)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    observed.observe(embeddings[order], order)
    observed.update()
    torch.testing.assert_close(observed.positive, exact.positive)
    torch.testing.assert_close(observed.sample_weights, exact.sample_weights, rtol=0, atol=0.05)

    some = BalancedSelfPaced(labels, 0.3, 1.0, 2.6, 0.5)
    ids = torch.arange(0, len(labels), 2)
    some.observe(embeddings[ids], ids)
    some.update()
    assert (some.sample_weights[1::2] == 1).all()
    assert torch.equal(some.weights(ids.int()), some.sample_weights[::2])
    assert some.sample_weights[::2].mean() < 0.5


BAD = {
    "lam must be positive": {"lam": 0.0},
    "lam must be positive and finite, got nan": {"lam": math.nan},
    "growth must be at least 1": {"growth": 0.9},
    "lam_max must be at least lam": {"lam_max": 0.5},
    "mu must be at least 0": {"mu": -0.1},
    "solver='newton': expected one of exact, stochastic": {"solver": "newton"},
    "seed must be from 0": {"seed": 2**31},
    "learning_rate must be positive": {"learning_rate": 0.0},
    "steps must be at least 0": {"steps": -1},
    "classes_per_step must be at least 1": {"classes_per_step": 0},
    "labels must be integers of at least 0": {"labels": torch.tensor([0, -1])},
}


@pytest.mark.parametrize("message", BAD)
def test_settings_out_of_range(message):
    with pytest.raises(ValueError, match=message):
        BalancedSelfPaced(**{"labels": torch.tensor([0, 1]), **BAD[message]})


def test_bad_input_leaves_the_state_as_it_was():
    embeddings, labels, _ = clusters()
    paced = BalancedSelfPaced(labels)
    before = copy.deepcopy(paced)
    spoilt = embeddings.clone()
    spoilt[7, 2] = math.nan
    with pytest.raises(ValueError, match=r"embeddings\[7\] has NaN or inf"):
        paced.update(spoilt)
    with pytest.raises(ValueError, match="embeddings must have 120 rows, one for each training sample, got 3"):
        paced.update(embeddings[:3])
    with pytest.raises(ValueError, match="nothing was observed"):
        paced.update()
    with pytest.raises(IndexError, match=r"sample_ids\[1\] = 120 is outside 0 … 119"):
        paced.weights(torch.tensor([0, 120]))
    with pytest.raises(ValueError, match="sample_ids must be integers"):
        paced.observe(embeddings[:3], torch.tensor([0, 1]))
    assert_same_state(paced, before)


@needs_gpu
def test_on_a_gpu_the_weights_are_the_hosts():
    embeddings, labels, _ = clusters()
    host, device = BalancedSelfPaced(labels, 2.6, 1.0, 2.6, 0.5), BalancedSelfPaced(labels.cuda(), 2.6, 1.0, 2.6, 0.5)
    host.update(embeddings)
    device.update(embeddings.cuda())
    assert device.sample_weights.is_cuda
    torch.testing.assert_close(device.sample_weights.cpu(), host.sample_weights, rtol=0, atol=0.05)
