"""Algorithm 3 of self-paced metric learning, called by address, against the algorithm written out in plain Python.

No torch in here, so that the sanitized build runs these tests in seconds.
"""

import numpy as np
import pytest

SUFFIX = {np.float32: "f32", np.float64: "f64"}
WORD = 2**64 - 1


def mix(z):
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
    return z ^ z >> 31


def random_below(seed, stream, n, bound):
    key = mix((mix(seed) + stream) & WORD)
    word = mix((key + (n + 1) * 0x9E3779B97F4A7C15) & WORD)
    return int((word >> 11) * 2.0**-53 * bound)


class Problem:
    def __init__(self, sizes, dtype, P=3, K=2, steps=200, seed=7, decay=0.01):
        rng = np.random.default_rng(sum(sizes))
        self.sizes, self.dtype, self.P, self.K, self.steps, self.seed, self.decay = (
            sizes,
            dtype,
            P,
            K,
            steps,
            seed,
            decay,
        )
        self.N, self.C, self.lam, self.mu = sum(sizes), len(sizes), 0.8, 1.5
        self.start, self.positive, self.negative = rng.random((3, self.N)).astype(dtype)
        self.classes = np.repeat(np.arange(self.C), sizes)
        self.starts = np.concatenate([[0], np.cumsum(sizes)])
        self.rates = 0.7 / np.array(sizes, np.float64)

    def run(self, module):
        weights = np.concatenate([self.start, [self.dtype(-7)]])  # the last is a guard
        getattr(module, f"self_paced_sweep_{SUFFIX[self.dtype]}")(
            weights=weights.ctypes.data,
            positive=self.positive.ctypes.data,
            negative=self.negative.ctypes.data,
            classes=self.classes.ctypes.data,
            starts=self.starts.ctypes.data,
            rates=self.rates.ctypes.data,
            N=self.N,
            C=self.C,
            lam=self.lam,
            mu=self.mu,
            decay=self.decay,
            classes_per_step=self.P,
            samples_per_class=self.K,
            seed=self.seed,
            steps=self.steps,
        )
        assert weights[-1] == -7
        return weights[:-1]

    def choose(self, stream, place, population, count, one_stream_each):
        """Floyd: a number that is taken gives way to the last one."""
        chosen = []
        for i in range(min(count, population)):
            last = population - min(count, population) + i
            where = (stream + i, place) if one_stream_each else (stream, place + i)
            drawn = random_below(self.seed, *where, last + 1)
            chosen.append(last if drawn in chosen else drawn)
        return chosen

    def expected(self):
        w = [float(x) for x in self.start]
        P, members = min(self.P, self.C - 1), [range(s, e) for s, e in zip(self.starts, self.starts[1:], strict=False)]

        def mean_weight(k):
            return sum(w[i] for i in members[k]) / len(members[k])

        for t in range(self.steps):
            a = random_below(self.seed, 0, t, self.N)
            c = self.classes[a]
            # The last of a class stands in for the anchor, the last class for the anchor's.
            own = self.choose(2, t * (P + 1) + P, len(members[c]) - 1, self.K, True)
            own = [members[c][-1] if members[c][i] == a else members[c][i] for i in own]
            others = self.choose(1, t * P, self.C - 1, self.P, False)
            others = [self.C - 1 if k == c else k for k in others]
            G = -self.lam
            if own:
                G += sum(w[p] * (float(self.positive[p]) + float(self.positive[a])) for p in own) / len(own)
            for r, k in enumerate(others):
                drawn = [members[k][n] for n in self.choose(2, t * (P + 1) + r, len(members[k]), self.K, True)]
                mean = sum(w[n] * (float(self.negative[n]) + float(self.negative[a])) for n in drawn) / len(drawn)
                G += mean / len(others)
            if others:
                rest = sum(mean_weight(k) for k in range(self.C) if k != c) / (self.C - 1)
                G += 2 * self.mu * (mean_weight(c) - rest)
            rate = self.rates[c] / (1 + self.decay * t)
            w[a] = float(self.dtype(min(max(w[a] - rate * G, 0.0), 1.0)))
        return np.array(w)


SIZES = [[5, 1, 4, 9, 2, 30], [1], [12], [1, 1, 1], [3] * 40]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("P", "K"), [(3, 2), (16, 4), (1, 1), (50, 40)])
@pytest.mark.parametrize("sizes", SIZES, ids=len)
def test_against_the_algorithm_written_out(native, sizes, P, K, dtype):
    problem = Problem(sizes, dtype, P, K)
    # Sums of the classes are kept here, and made anew there.
    np.testing.assert_allclose(
        problem.run(native), problem.expected(), rtol=0, atol=1e-5 if dtype is np.float32 else 1e-12
    )


@pytest.mark.parametrize("steps", [0, 1, 15, 16, 17, 33])
def test_blocks_of_steps_leave_no_seam(native, steps):
    problem = Problem(SIZES[0], np.float64, steps=steps)
    np.testing.assert_allclose(problem.run(native), problem.expected(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_seeds(native, seed):
    problem = Problem(SIZES[0], np.float64, seed=seed)
    np.testing.assert_allclose(problem.run(native), problem.expected(), rtol=0, atol=1e-12)
    assert np.any(problem.run(native) != Problem(SIZES[0], np.float64, seed=seed ^ 4).run(native))
