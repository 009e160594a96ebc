"""Sums over pairs: ``pair_lse``, ``pair_hinge`` and their weighted sums."""

from dataclasses import dataclass
from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor

from python_ref import anchor, multi_similarity
from python_ref.pairs import pair_sets
from robustdml_ops import ops
from tests.fuzz.draws import (
    backends,
    dimensions,
    flags,
    floats,
    generator_of,
    label_vectors,
    matrices,
    normal,
    seeds,
    sizes,
    uniform,
)
from tests.fuzz.oracle import Tensors, Trial
from tests.fuzz.trials.batches import Draw, chance, digits, wanted_of

# None lies between numbers that a lattice of directions makes: a pair there would be decided by rounding.
margins = st.sampled_from([-0.37, 0.0, 0.13, 0.52, 0.91, 2.0])


@dataclass
class Pairs:
    """Anchors, and perhaps candidates of their own."""

    X: Tensor  # (n, D)
    labels: Tensor
    V: Tensor | None  # (m, D)
    candidate_labels: Tensor | None

    @property
    def compute(self) -> torch.dtype:
        types = [self.X.dtype] if self.V is None else [self.X.dtype, self.V.dtype]
        return torch.float64 if torch.float64 in types else torch.float32

    @property
    def tensors(self) -> Tensors:
        return {"embeddings": self.X} if self.V is None else {"embeddings": self.X, "candidates": self.V}

    @property
    def m(self) -> int:
        return len(self.X if self.V is None else self.V)

    @property
    def sets(self) -> tuple[Tensor, Tensor]:
        """Positives and negatives (n, m)."""
        y = self.labels.long()
        if self.V is None or self.candidate_labels is self.labels:
            return pair_sets(y)
        return pair_sets(y, self.candidate_labels.long())

    def arguments(self, t: Tensors) -> tuple[Tensor | None, ...]:
        return t["embeddings"], self.labels, t.get("candidates"), self.candidate_labels


def drawn(draw: Draw) -> Pairs:
    n, D, classes = draw(sizes), draw(dimensions), draw(st.integers(1, 6))
    X = draw(matrices(n, D))
    labels = draw(label_vectors(n, classes))
    kind = draw(st.sampled_from(["itself", "itself", "candidates", "another view"]))
    if kind == "itself":
        return _with_absent(draw, Pairs(X, labels, None, None))
    m = n if kind == "another view" else draw(sizes)
    V = draw(matrices(m, D, X.dtype if draw(flags) else draw(floats)))
    found = Pairs(X, labels, V, labels if kind == "another view" else draw(label_vectors(m, classes)))
    return _with_absent(draw, found)


def _with_absent(draw: Draw, pairs: Pairs) -> Pairs:
    """Some labels of int64 are ABSENT."""
    if pairs.labels.dtype == torch.int64 and chance(draw) and pairs.candidate_labels is not pairs.labels:
        some = uniform(generator_of(draw(seeds)), len(pairs.labels)) < 0.3
        pairs.labels = pairs.labels.masked_fill(some, ops.ABSENT)
    return pairs


def _scales(draw: Draw, pairs: Pairs) -> list[Tensor]:
    generator = generator_of(draw(seeds))
    return [(2 * uniform(generator, *((len(pairs.X),) if draw(flags) else ()))).to(pairs.compute) for _ in range(2)]


def _lse(draw: Draw, summed: bool) -> Trial:
    pairs, backend = drawn(draw), draw(backends)
    alpha, beta = draw(st.sampled_from([0.5, 2.0, 18.0, 300.0])), draw(st.sampled_from([1.0, 50.0, 400.0]))
    base, epsilon = draw(st.sampled_from([-0.5, 0.0, 0.5, 1.0])), draw(st.sampled_from([None, 0.037, 0.11, -0.21]))
    weights = None
    if chance(draw):
        weights = normal(generator_of(draw(seeds)), pairs.m).abs().to(pairs.compute)
    settings = {"alpha": alpha, "beta": beta, "base": base, "epsilon": epsilon}
    scales = _scales(draw, pairs) if summed else None
    both = pairs.sets

    def call(t: Tensors):
        more = {"candidate_weights": weights, "backend": backend, **settings}
        if scales is None:
            return tuple(ops.pair_lse(*pairs.arguments(t), **more))
        return ops.pair_lse_sum(*pairs.arguments(t), *scales, **more)

    def expected(t: Tensors):
        X = t["embeddings"]
        if pairs.m == 0:
            lse = [X.sum(1) * 0] * 2
        else:
            S = anchor.cosine_similarity(X, t.get("candidates", X))
            sets = both if epsilon is None else multi_similarity.informative_pairs(S.detach(), *both, epsilon)
            lse = multi_similarity.multi_similarity_terms(S, *sets, alpha, beta, base)
            if weights is not None:
                w = weights.double()
                lse = [each * (of * w).sum(1) / of.sum(1).clamp(min=1) for each, of in zip(lse, sets, strict=True)]
        if scales is None:
            return tuple(lse)
        return sum((scale.double() * each).sum() for scale, each in zip(scales, lse, strict=True))

    return Trial(
        call, expected, pairs.tensors, tuple(pairs.tensors), wanted_of(draw, *pairs.tensors), pairs.compute,
        digits(pairs.X.shape[1], base), [both[0]], steepness=max(alpha, beta),
    )  # fmt: skip


def _hinge(draw: Draw, summed: bool) -> Trial:
    pairs, backend = drawn(draw), draw(backends)
    settings = {
        "positive_margin": draw(margins),
        "negative_margin": draw(margins),
        "positive_offset": draw(st.sampled_from([0.0, -2.0, 0.3])),
        "negative_offset": draw(st.sampled_from([0.0, 0.5])),
        "distance": draw(st.sampled_from(["cosine", "euclidean"])),
    }
    average = summed and draw(flags)
    scales = _scales(draw, pairs) if summed else None
    both = pairs.sets
    sign = 1 if settings["distance"] == "cosine" else -1

    def call(t: Tensors):
        if scales is None:
            return tuple(ops.pair_hinge(*pairs.arguments(t), backend=backend, **settings))[:2]
        return ops.pair_hinge_sum(*pairs.arguments(t), *scales, average=average, backend=backend, **settings)

    def expected(t: Tensors):
        X = t["embeddings"]
        V = t.get("candidates", X)
        if pairs.m == 0:
            return 0 * X.sum() if summed else (0 * X.sum(1),) * 2
        S = anchor.cosine_similarity(X, V) if sign == 1 else -anchor.unit_distance(X, V)
        hinges = (
            torch.where(both[0], sign * settings["positive_margin"] - S, 0).clamp(min=0),
            torch.where(both[1], S - sign * settings["negative_margin"], 0).clamp(min=0),
        )
        offsets = settings["positive_offset"], settings["negative_offset"]
        counts = [(hinge > 0).sum(1) for hinge in hinges]
        sums = [h.sum(1) + o * c.double() for h, o, c in zip(hinges, offsets, counts, strict=True)]
        if scales is None:
            return tuple(sums)
        sums = [scale.double() * each for scale, each in zip(scales, sums, strict=True)]
        if average:
            sums = [each / count.sum().clamp(min=1) for each, count in zip(sums, counts, strict=True)]
        return sum(each.sum() for each in sums)

    return Trial(
        call, expected, pairs.tensors, tuple(pairs.tensors), wanted_of(draw, *pairs.tensors), pairs.compute,
        digits(pairs.X.shape[1], 2.0, 2.0), [both[0]],
    )  # fmt: skip


TRIALS = {
    "pair_lse": partial(_lse, summed=False),
    "pair_lse_sum": partial(_lse, summed=True),
    "pair_hinge": partial(_hinge, summed=False),
    "pair_hinge_sum": partial(_hinge, summed=True),
}
