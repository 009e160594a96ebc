"""Self-paced sample weights: both solvers against autograd of the objective, and the same bits everywhere."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_ref.bspml import self_paced_gradient, self_paced_objective
from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.random_words import random_words
from robustdml_ops.ops import self_paced_descent, self_paced_sweep
from tests.robust.states import needs_gpu
from tests.self_paced.cases import Case

random_cases = settings(max_examples=25, deadline=None, derandomize=True)
cases = st.builds(Case, N=st.integers(1, 40), C=st.integers(1, 12), seed=st.integers(0, 2**32))


def test_random_words_are_splitmix64():
    """The published sequence of seed 1234567."""
    words = [int(word) % 2**64 for word in random_words(1234567, torch.arange(3))]
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@random_cases
@given(
    case=cases,
    P=st.integers(1, 14),
    K=st.integers(1, 9),
    steps=st.integers(0, 300),
    mu=st.floats(0, 4),
    decay=st.sampled_from([0.0, 0.02]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_weights_stay_in_range(case, P, K, steps, mu, decay, dtype):
    w, *rest = (tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in case.terms())
    options = {"classes_per_step": P, "samples_per_class": K, "steps": steps, "decay": decay, "seed": steps}
    found = self_paced_sweep(w, *rest, lam=0.7, mu=mu, learning_rate=2.0, **options)
    assert found.dtype == dtype
    assert ((found >= 0) & (found <= 1)).all()
    assert torch.equal(found, self_paced_sweep(w, *rest, lam=0.7, mu=mu, learning_rate=2.0, **options))
    assert torch.equal(w, case.w.to(dtype))


@random_cases
@given(case=cases, mu=st.floats(0, 4), seed=st.integers(0, 2**64 - 1))
def test_a_step_with_full_samples_is_along_autograds_gradient(case, mu, seed):
    w, *rest = case.terms()
    w = 0.2 + 0.6 * w
    rate = 1e-3
    moved = self_paced_sweep(
        w, *rest, lam=0.7, mu=mu, learning_rate=rate, steps=1, classes_per_step=99, samples_per_class=99, seed=seed
    )
    step = (w - moved) / rate
    assert (step != 0).sum() <= 1
    where = step.abs().argmax()
    exact = self_paced_gradient(w, *rest, 0.7, mu)
    torch.testing.assert_close(step[where], exact[where], rtol=1e-9, atol=1e-10)


def test_threads_do_not_matter_and_seeds_do(threads):
    case, results = Case(60, 9, seed=1), []
    for count, seed in ((1, 4), (2, 4), (2, 5)):
        threads(count)
        results.append(self_paced_sweep(*case.terms(), lam=0.7, mu=1.0, learning_rate=0.5, steps=99, seed=seed))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_a_rate_for_each_class():
    labels = torch.tensor([0, 0, 2, 2, 2])
    start, xi = torch.full((5,), 0.5).double(), torch.full((5,), 0.2).double()

    def moved(rate):
        return self_paced_sweep(start, xi, xi, labels, lam=1.0, mu=0.0, learning_rate=rate, steps=200) - start

    gain = moved(torch.tensor([1e-3, 99.0, 2e-3])) / moved(1e-3)
    torch.testing.assert_close(gain[:2], torch.ones(2).double(), rtol=0.01, atol=0)
    torch.testing.assert_close(gain[2:], torch.full((3,), 2.0).double(), rtol=0.01, atol=0)


@random_cases
@given(case=cases, lam=st.floats(0.1, 3), mu=st.floats(0, 4))
def test_the_exact_descent_never_rises_and_ends_where_nothing_moves(case, lam, mu):
    w, *rest = case.terms()
    before = self_paced_objective(w, *rest, lam, mu)
    for _ in range(12):
        w = self_paced_descent(w, *rest, lam=lam, mu=mu, steps=1)
        after = self_paced_objective(w, *rest, lam, mu)
        assert after <= before + 1e-14 * before.abs()
        before = after
    w = self_paced_descent(w, *rest, lam=lam, mu=mu, steps=20_000, tolerance=1e-6)
    assert self_paced_objective(w, *rest, lam, mu) <= before + 1e-14 * before.abs()
    assert ((w >= 0) & (w <= 1)).all()
    sizes = (rest[2][:, None] == rest[2]).sum(1)
    gradient = self_paced_gradient(w, *rest, lam, mu) * sizes
    assert ((w - (w - gradient * 1e-3).clamp(0, 1)).abs() <= 1.1e-9).all()


BAD = {
    "lam must be positive": {"lam": 0.0},
    "lam must be positive and finite, got nan": {"lam": math.nan},
    "mu must be at least 0": {"mu": -1.0},
    "at most 1e[+]100, got 1e[+]308": {"mu": 1e308},
    "steps must be at least 0": {"steps": -1},
    "learning_rate must be positive": {"learning_rate": 0.0},
    "classes_per_step must be at least 1": {"classes_per_step": 0},
    "samples_per_class must be at least 1": {"samples_per_class": 0},
    "decay must be at least 0": {"decay": -0.1},
    "seed must be from 0": {"seed": -1},
    "one for each of the classes": {"learning_rate": torch.ones(2)},
}


@pytest.mark.parametrize("message", BAD)
def test_settings_out_of_range(message):
    settings = {"lam": 1.0, "mu": 0.0, "learning_rate": 1.0, "steps": 1} | BAD[message]
    with pytest.raises(ValueError, match=message):
        self_paced_sweep(torch.ones(3), torch.ones(3), torch.ones(3), torch.tensor([0, 1, 2]), **settings)


@pytest.mark.parametrize("solve", [self_paced_sweep, self_paced_descent], ids=lambda f: f.__name__)
def test_values_and_shapes_that_do_not_fit(solve):
    options = {"learning_rate": 1.0, "steps": 1} if solve is self_paced_sweep else {}
    ones, labels = torch.ones(3), torch.tensor([0, 0, 1])

    def run(w=ones, positive=ones, negative=ones, labels=labels):
        return solve(w, positive, negative, labels, lam=1.0, mu=1.0, **options)

    with pytest.raises(ValueError, match=r"positive\[1\] = nan must be finite"):
        run(positive=torch.tensor([1.0, math.nan, 1.0]))
    with pytest.raises(ValueError, match=r"weights\[2\] = 1.5 must be in \[0, 1\]"):
        run(w=torch.tensor([1.0, 0.0, 1.5]))
    with pytest.raises(ValueError, match="negative must be a floating-point vector of length 3"):
        run(negative=torch.ones(2))
    with pytest.raises(ValueError, match="labels must be a vector of integers"):
        run(labels=torch.ones(3))
    assert run(ones[:0], ones[:0], ones[:0], labels[:0]).shape == (0,)


def test_without_the_native_module_the_exact_descent_is_left(monkeypatch):
    arguments = Case(9, 3, seed=0).terms()
    monkeypatch.setattr(module, "library", None)
    monkeypatch.setattr(module, "_REASON", "the native module is not installed", raising=False)
    with pytest.raises(RuntimeError, match="the native module is not installed; self_paced_descent runs without it"):
        self_paced_sweep(*arguments, lam=1.0, mu=0.0, learning_rate=1.0, steps=9)
    assert self_paced_descent(*arguments, lam=1.0, mu=0.0).shape == (9,)


@needs_gpu
def test_tensors_of_a_gpu_come_back_to_it():
    case = Case(50, 6, seed=2, dtype=torch.float32)
    options = {"lam": 1.0, "mu": 1.0, "learning_rate": 1.0, "steps": 99}
    ours = self_paced_sweep(*(tensor.cuda() for tensor in case.terms()), **options)
    assert ours.is_cuda
    assert torch.equal(ours.cpu(), self_paced_sweep(*case.terms(), **options))


@pytest.mark.filterwarnings("error")
def test_terms_of_size_0_need_no_step_of_a_size():
    """Nothing curves then: a step is as long as numbers go, and ends at 1 without a word."""
    xi, labels = torch.zeros(4, dtype=torch.float64), torch.tensor([0, 0, 1, 2])
    w = self_paced_descent(torch.full_like(xi, 0.5), xi, xi, labels, lam=4.0, mu=0.0)
    assert w.tolist() == [1.0] * 4
