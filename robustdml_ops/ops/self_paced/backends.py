"""Algorithm 3 in the native module, and with the same bits, a hundred times slower, in NumPy and Python."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustdml_ops.backends import native_module as module
from robustdml_ops.engine.random_words import random_key, random_words, shifted
from robustdml_ops.ops.self_paced.problem import CoordinateDescent, SelfPacedTerms

_BLOCK = 1024
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class EagerSelfPaced:
    """On every device, without a compiler."""

    def coordinate_descent(self, terms: SelfPacedTerms, weights: Tensor, settings: CoordinateDescent) -> None:
        """Algorithm 3 from ``weights`` (N,), sorted as the terms, in place: the same bits from every backend."""
        round_to = float if weights.dtype == torch.float64 else lambda value: float(np.float32(value))
        w, positive, negative = weights.tolist(), terms.positive.tolist(), terms.negative.tolist()
        classes, sizes, rates = terms.classes.tolist(), terms.sizes.tolist(), settings.rates.tolist()
        class_sums = [0.0] * len(sizes)
        for weight, c in zip(w, classes, strict=True):
            class_sums[c] += weight
        sum_of_means, other_classes = 0.0, len(sizes) - 1
        for total, size in zip(class_sums, sizes, strict=True):
            sum_of_means += total / size

        def mean(chosen: list[int], count: int, xi: list[float], anchor: int) -> float:
            total = 0.0
            for i in chosen[:count]:
                total += w[i] * (xi[i] + xi[anchor])
            return total / max(count, 1)

        for first in range(0, settings.steps, _BLOCK):
            draws = _draw(terms, settings, first, min(_BLOCK, settings.steps - first))
            for t, (a, chosen, counts) in enumerate(zip(*(drawn.tolist() for drawn in draws), strict=True), first):
                c = classes[a]
                G_p = mean(chosen[-1], counts[-1], positive, a)
                G_n = G_b = 0.0
                if other_classes > 0:
                    for k, count in enumerate(counts[:-1]):
                        G_n += mean(chosen[k], count, negative, a)
                    G_n /= len(counts) - 1
                    own = class_sums[c] / sizes[c]
                    G_b = 2 * settings.mu * (own - (sum_of_means - own) / other_classes)
                rate = rates[c] / (1 + settings.decay * t)
                moved = round_to(min(max(w[a] - rate * (G_p + G_n + G_b - settings.lam), 0.0), 1.0))
                change, w[a] = moved - w[a], moved
                class_sums[c] += change
                sum_of_means += change / sizes[c]
        weights.copy_(torch.tensor(w, dtype=weights.dtype))


def _draw(terms: SelfPacedTerms, settings: CoordinateDescent, first: int, block: int) -> tuple[Integers, ...]:
    """Anchors (block,), samples (block, P + 1, K) of other classes and, last, of the anchor's own, and how many."""
    # Streams of the seed: 0 anchors, 1 classes, 2 + i the i-th sample of every row.
    C, K, seed = len(terms.names), settings.samples_per_class, settings.seed
    P = min(settings.classes_per_step, C - 1)
    starts, sizes = terms.starts.numpy(), terms.sizes.numpy()
    anchors = _below(_units(seed, 0, first, block), len(terms.order))
    own = terms.classes.numpy()[anchors]

    # To exclude the anchor's class (below: the anchor), draw from 0 … n − 2 and replace the excluded number by n − 1.
    class_units = _units(seed, 1, first * P, block * P).reshape(block, P)
    others = _choose(list(class_units.T), np.full(block, C - 1), own, np.full(block, C - 1))
    rows = np.concatenate([others, own[:, None]], axis=1)
    population = sizes[rows]
    population[:, -1] -= 1
    units = [_units(seed, 2 + i, first * (P + 1), block * (P + 1)) for i in range(K)]
    hole = np.full((block, P + 1), -1)
    hole[:, -1] = anchors - starts[own]
    chosen = _choose(units, population.ravel(), hole.ravel(), population.ravel()).reshape(block, P + 1, K)
    return anchors, starts[rows][..., None] + chosen, np.minimum(population, K)


def _units(seed: int, stream: int, first: int, count: int) -> Floats:
    """``count`` numbers in [0, 1) of a stream, multiples of 2⁻⁵³."""
    words: Integers = shifted(random_words(random_key(seed, stream), torch.arange(first, first + count)), 11).numpy()
    return words.astype(np.float64) * 2.0**-53


def _below(units: Floats, bound: Integers | int) -> Integers:
    """Integers 0 … bound − 1."""
    return (units * bound).astype(np.int64)


def _choose(units: list[Floats], population: Integers, hole: Integers, filler: Integers) -> Integers:
    """Draw without replacement (Floyd) from 0 … population − 1, with ``filler`` in the place of ``hole``; (rows, K)."""
    K = len(units)
    chosen = np.full((len(population), K), -1)
    for i in range(K):
        last = np.maximum(np.minimum(np.maximum(population - K, 0) + i, population - 1), 0)
        drawn = _below(units[i], last + 1)
        drawn = np.where(drawn == hole, filler, drawn)
        taken = (chosen[:, :i] == drawn[:, None]).any(axis=1)
        chosen[:, i] = np.where(taken, np.where(last == hole, filler, last), drawn)
    return chosen


class NativeSelfPaced(EagerSelfPaced):
    """In the native module, ``csrc/self_paced/cpu.cpp``; on the CPU."""

    def coordinate_descent(self, terms: SelfPacedTerms, weights: Tensor, settings: CoordinateDescent) -> None:
        getattr(module.library, f"self_paced_sweep_{module.SUFFIX[weights.dtype]}")(
            weights=weights.data_ptr(),
            positive=terms.positive.data_ptr(),
            negative=terms.negative.data_ptr(),
            classes=terms.classes.data_ptr(),
            starts=terms.starts.data_ptr(),
            rates=settings.rates.data_ptr(),
            N=len(weights),
            C=len(terms.names),
            **{name: value for name, value in vars(settings).items() if name != "rates"},
        )
