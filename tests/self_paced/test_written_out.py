"""Algorithm 3 of self-paced metric learning against the algorithm written out in plain Python."""

import numpy as np
import pytest
import torch

from robustdml_ops.ops import self_paced_sweep
from tests.nightly import nightly_but

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
    """Random terms of classes of these sizes."""

    lam, mu, decay = 0.8, 1.5, 0.01

    def __init__(self, sizes, dtype=torch.float64, P=3, K=2, steps=200, seed=7):
        self.sizes, self.dtype, self.P, self.K, self.steps, self.seed = sizes, dtype, P, K, steps, seed
        self.N, self.C = sum(sizes), len(sizes)
        self.start, self.positive, self.negative = torch.rand(3, self.N, dtype=dtype)
        self.classes = torch.arange(self.C).repeat_interleave(torch.tensor(sizes))
        self.starts = np.concatenate([[0], np.cumsum(sizes)])

    def run(self):
        return self_paced_sweep(
            self.start, self.positive, self.negative, self.classes, lam=self.lam, mu=self.mu, decay=self.decay,
            learning_rate=0.7, classes_per_step=self.P, samples_per_class=self.K, seed=self.seed, steps=self.steps,
        )  # fmt: skip

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
        w, positive, negative = (given.tolist() for given in (self.start, self.positive, self.negative))
        P, members = min(self.P, self.C - 1), [range(s, e) for s, e in zip(self.starts, self.starts[1:], strict=False)]

        def mean_weight(k):
            return sum(w[i] for i in members[k]) / len(members[k])

        for t in range(self.steps):
            a = random_below(self.seed, 0, t, self.N)
            c = int(self.classes[a])
            # The last of a class stands in for the anchor, the last class for the anchor's.
            own = self.choose(2, t * (P + 1) + P, len(members[c]) - 1, self.K, True)
            own = [members[c][-1] if members[c][i] == a else members[c][i] for i in own]
            others = self.choose(1, t * P, self.C - 1, self.P, False)
            others = [self.C - 1 if k == c else k for k in others]
            G = -self.lam
            if own:
                G += sum(w[p] * (positive[p] + positive[a]) for p in own) / len(own)
            for r, k in enumerate(others):
                drawn = [members[k][n] for n in self.choose(2, t * (P + 1) + r, len(members[k]), self.K, True)]
                mean = sum(w[n] * (negative[n] + negative[a]) for n in drawn) / len(drawn)
                G += mean / len(others)
            if others:
                rest = sum(mean_weight(k) for k in range(self.C) if k != c) / (self.C - 1)
                G += 2 * self.mu * (mean_weight(c) - rest)
            rate = 0.7 / self.sizes[c] / (1 + self.decay * t)
            w[a] = torch.tensor(min(max(w[a] - rate * G, 0.0), 1.0), dtype=self.dtype).item()
        return torch.tensor(w, dtype=self.dtype)

    def check(self):
        expected = self.expected()
        # Sums of the classes are kept here, and made anew there.
        tolerance = 1e-5 if self.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(self.run(), expected, rtol=0, atol=tolerance)


SIZES = [[5, 1, 4, 9, 2, 30], [1], [12], [1, 1, 1], [3] * 40]


@pytest.mark.parametrize("dtype", nightly_but([torch.float64], [torch.float32, torch.float64]))
@pytest.mark.parametrize(("P", "K"), [(3, 2), (16, 4), (1, 1), (50, 40)])
@pytest.mark.parametrize("sizes", SIZES, ids=len)
def test_against_the_algorithm_written_out(sizes, P, K, dtype):
    Problem(sizes, dtype, P, K, steps=60).check()


@pytest.mark.parametrize("steps", [0, 1, 15, 16, 17, 33])
def test_blocks_of_steps_leave_no_seam(steps):
    Problem(SIZES[0], torch.float32, steps=steps).check()
