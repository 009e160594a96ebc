"""Algorithm 3 of self-paced metric learning against the same loop in NumPy; an update of the weights; their terms."""

import time

import numpy as np
import pytest
import torch

from robustdml_ops.ops import self_paced_sweep
from robustdml_ops.python_ref.bspml import self_paced_terms
from robustdml_ops.robust import BalancedSelfPaced

N, C, P, K = 60_000, 11_318, 16, 4  # the size of Stanford Online Products' training half
STEPS, NUMPY_STEPS = 10_000_000, 20_000
SETTINGS = {"lam": 2.0, "mu": 2.0}


def problem(dtype=torch.float32):
    """Samples in random order; a fifth of them far from their class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.cat([torch.arange(C), torch.randint(C, (N - C,), generator=generator)])
    labels = labels[torch.randperm(N, generator=generator)]
    wrong = torch.rand(N, generator=generator) < 0.2
    positive = torch.where(wrong, 1.5, 0.8) + 0.2 * torch.rand(N, generator=generator)
    negative = 0.1 * torch.rand(N, generator=generator)
    return torch.ones(N, dtype=dtype), positive.to(dtype), negative.to(dtype), labels


def by_numpy(weights, positive, negative, labels, lam, mu, learning_rate, steps):
    """As one writes it in NumPy: a Python loop over steps, vectors within, running sums; members with replacement."""
    rng = np.random.default_rng(0)
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    w, xi_p, xi_n, classes = weights[order], positive[order], negative[order], labels[order]
    sums = np.bincount(classes, w)
    mean_sum = (sums / sizes).sum()
    for _ in range(steps):
        a = rng.integers(N)
        c = classes[a]
        gradient = -lam
        if sizes[c] > 1:
            p = starts[c] + rng.integers(0, sizes[c] - 1, K)
            p += p >= a
            gradient += (w[p] * (xi_p[p] + xi_p[a])).mean()
        k = rng.integers(0, C - 1, P)
        k += k >= c
        n = starts[k, None] + (rng.random((P, K)) * sizes[k, None]).astype(np.int64)
        gradient += (w[n] * (xi_n[n] + xi_n[a])).mean()
        mean = sums[c] / sizes[c]
        gradient += 2 * mu * (mean - (mean_sum - mean) / (C - 1))
        moved = min(max(w[a] - learning_rate / sizes[c] * gradient, 0), 1)
        sums[c] += moved - w[a]
        mean_sum += (moved - w[a]) / sizes[c]
        w[a] = moved
    weights[order] = w
    return weights


def test_sweep(timed):
    arguments = problem()

    def sweep(steps):
        return self_paced_sweep(
            *arguments,
            **SETTINGS,
            learning_rate=1.0,
            steps=steps,
            classes_per_step=P,
            samples_per_class=K,
        )

    arrays = [tensor.numpy() for tensor in arguments]
    ours = sweep(NUMPY_STEPS)
    start = time.perf_counter()
    theirs = by_numpy(arrays[0].copy(), *arrays[1:], **SETTINGS, learning_rate=1.0, steps=NUMPY_STEPS)
    numpy_s = (time.perf_counter() - start) / NUMPY_STEPS
    assert theirs.mean() == pytest.approx(ours.mean().item(), abs=0.01)
    reads = torch.randint(N, (1000 * (K + P * K),))
    out = torch.empty(len(reads))
    timed(
        lambda: sweep(STEPS),
        lambda: [torch.index_select(arguments[0], 0, reads, out=out) for _ in range(STEPS // 1000)],
        group=f"Algorithm 3, T={STEPS:.0e}, N={N}, C={C}, P={P}, K={K}; the floor is as many reads at random places",
        contender="robustdml/self_paced_sweep",
        rounds=3,
        numpy_s_per_step=numpy_s,
    )


def objective(weights, positive, negative, labels, lam, mu):
    """Eq. 6 from class sums; ``python_ref`` compares all classes with all."""
    sizes = torch.bincount(labels).double()
    w, positive, negative = weights.double(), positive.double(), negative.double()
    zeta, push = (torch.bincount(labels, values) for values in (w, w * negative))
    pull = torch.bincount(labels, w * (zeta[labels] - w) * positive) / (sizes - 1).clamp(min=1)
    mean = zeta / sizes
    total = ((pull + push * (mean.sum() - mean) / (C - 1)) / sizes).sum() - lam * mean.sum()
    return (total + mu / (C - 1) * (C * mean.square().sum() - mean.sum() ** 2)).item()


@pytest.mark.parametrize("solver", ["exact", "stochastic"])
def test_update(timed, solver):
    """What :class:`BalancedSelfPaced` does with the terms; the objective that each solver reaches."""
    ones, positive, negative, labels = problem()
    paced = BalancedSelfPaced(labels, lam=2.0, growth=1.0, lam_max=2.0, solver=solver)
    paced.positive.copy_(positive)
    paced.negative.copy_(negative)

    def update():
        paced.sample_weights.copy_(ones)
        paced.update()

    update()
    reached = objective(paced.sample_weights, positive, negative, labels, **SETTINGS)
    assert reached < objective(ones, positive, negative, labels, **SETTINGS)
    timed(
        update,
        lambda: ones.double().clone(),
        group=f"BalancedSelfPaced.update, N={N}, C={C}; the floor is a copy",
        contender=f"robustdml/{solver}",
        rounds=1,
        objective=reached,
        maw=paced.maw,
        sdaw=paced.sdaw,
    )


@pytest.mark.parametrize("samples", [20_000])
def test_terms(timed, samples):
    """ξ of all samples against all others; quadratic in their number."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(samples // 5, (samples,), generator=generator)
    embeddings = torch.randn(samples // 5, 128, generator=generator)[labels]
    embeddings += 0.6 * torch.randn(samples, 128, generator=generator)
    paced, ids = BalancedSelfPaced(labels), torch.arange(samples)
    paced.observe(embeddings[:500], ids[:500])
    positive, negative = self_paced_terms(embeddings[:500], labels[:500])
    torch.testing.assert_close(paced.positive[:500], positive)
    torch.testing.assert_close(paced.negative[:500], negative, rtol=1e-4, atol=1e-7)
    out = torch.empty(1000, samples)
    timed(
        lambda: paced.observe(embeddings, ids),
        lambda: [torch.mm(embeddings[i : i + 1000], embeddings.t(), out=out) for i in range(0, samples, 1000)],
        group=f"terms of {samples} samples, D=128; the floor is the product",
        contender="robustdml/observe",
        rounds=3,
    )
