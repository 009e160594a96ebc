"""Algorithm 3 of self-paced metric learning: ten million steps, against the same loop in NumPy; the exact descent."""

import time

import numpy as np
import pytest
import torch

from python_ref.bspml import average_weights
from robustdml_ops.ops import self_paced_descent, self_paced_sweep

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

    def sweep(steps, backend=None):
        return self_paced_sweep(
            *arguments,
            **SETTINGS,
            learning_rate=1.0,
            steps=steps,
            classes_per_step=P,
            samples_per_class=K,
            backend=backend,
        )

    assert torch.equal(sweep(3000), sweep(3000, "eager"))
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


def test_exact_descent(timed):
    arguments = problem()
    w = self_paced_descent(*arguments, **SETTINGS)
    assert 0 < average_weights(w[:2000], arguments[3][:2000])[0] < 1
    timed(
        lambda: self_paced_descent(*arguments, **SETTINGS),
        lambda: arguments[1].double().clone(),
        group=f"exact descent, N={N}, C={C}; the floor is a copy",
        contender="robustdml/self_paced_descent",
        rounds=5,
    )
