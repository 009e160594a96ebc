"""Losses on pairs of samples, with reference sets, weights and a miner's pairs."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import python_ref
from python_ref.multi_similarity import multi_similarity_terms
from python_ref.pairs import pair_sets, without_absent
from robustdml_ops import losses
from tests.fuzz.draws import flags, generator_of, matrices, sample_weights, seeds, uniform
from tests.fuzz.oracle import Tensors, Trial
from tests.fuzz.trials.batches import Draw, chance, digits, wanted_of
from tests.fuzz.trials.losses_anchor import options_of
from tests.fuzz.trials.pairs import Pairs, drawn
from tests.losses.pair_cases import per_sample_memory_loss


def _weights(draw: Draw, pairs: Pairs) -> Tensor | None:
    return draw(sample_weights(len(pairs.X), pairs.X.dtype))


def _reference_labels(pairs: Pairs) -> tuple[Tensor, Tensor | None]:
    """int64, and one tensor where they are one."""
    y = pairs.labels.long()
    if pairs.candidate_labels is None:
        return y, None
    return y, y if pairs.candidate_labels is pairs.labels else pairs.candidate_labels.long()


def _call(module: torch.nn.Module, pairs: Pairs, indices: tuple[Tensor, ...] | None = None):
    def call(t: Tensors):
        return module(
            t["embeddings"], pairs.labels, indices, t.get("candidates"), pairs.candidate_labels,
            sample_weights=t.get("weights"),
        )  # fmt: skip

    return call


def _mined(draw: Draw, pairs: Pairs) -> tuple[tuple[Tensor, ...] | None, tuple[Tensor, Tensor]]:
    """A miner's pairs, some of all there are, in any order; and the sets of pairs that count."""
    both = pairs.sets
    if not chance(draw, 4):
        return None, both
    generator = generator_of(draw(seeds))
    both = tuple(of & (uniform(generator, *of.shape) < 0.5) for of in both)
    listed = []
    for of in both:
        places = of.nonzero()
        listed += list(places[torch.randperm(len(places), generator=generator)].unbind(1))
    return tuple(listed), both


def multi_similarity(draw: Draw) -> Trial:
    pairs, options, weights = drawn(draw), options_of(draw), None
    alpha, beta = draw(st.sampled_from([0.5, 2.0, 18.0, 300.0])), draw(st.sampled_from([1.0, 50.0, 400.0]))
    base, epsilon = draw(st.sampled_from([-0.5, 0.5, 1.0])), draw(st.sampled_from([None, 0.037, 0.11]))
    indices, both = _mined(draw, pairs)
    if indices is None:
        weights = _weights(draw, pairs)
    else:
        epsilon = None
    module = losses.MultiSimilarityLoss(alpha, beta, base, epsilon=epsilon, **options)
    tensors = pairs.tensors | ({} if weights is None else {"weights": weights})
    y, of_candidates = _reference_labels(pairs)

    def expected(t: Tensors):
        X, V = t["embeddings"], t.get("candidates")
        if indices is not None:
            if pairs.m == 0:
                return python_ref.mean_over_samples(0 * X.sum(1), None, options["reduction"])
            S = python_ref.anchor.cosine_similarity(X, X if V is None else V)
            positive, negative = multi_similarity_terms(S, *both, alpha, beta, base)
            return python_ref.mean_over_samples(positive / alpha + negative / beta, None, options["reduction"])
        return python_ref.multi_similarity_loss(
            X, y, V, of_candidates, alpha, beta, base, epsilon, t.get("weights"), None, options["reduction"]
        )

    return Trial(
        _call(module, pairs, indices), expected, tensors, tuple(pairs.tensors), wanted_of(draw, *tensors),
        pairs.compute, digits(pairs.X.shape[1], base), [pairs.sets[0]], steepness=max(alpha, beta),
    )  # fmt: skip


def contrastive(draw: Draw) -> Trial:
    pairs, options = drawn(draw), options_of(draw)
    distance = draw(st.sampled_from(["euclidean", "cosine"]))
    margins = (draw(st.sampled_from([0.0, 0.213])), draw(st.sampled_from([0.47, 1.0, 1.7])))
    margins = margins if distance == "euclidean" else (0.813, 0.127)
    weights = _weights(draw, pairs)
    module = losses.ContrastiveLoss(*margins, distance=distance, **options)
    tensors = pairs.tensors | ({} if weights is None else {"weights": weights})
    y, of_candidates = _reference_labels(pairs)

    def expected(t: Tensors):
        X, V = t["embeddings"], t.get("candidates")
        if pairs.m == 0:
            return python_ref.mean_over_samples(0 * X.sum(1), None, options["reduction"])
        return python_ref.contrastive_loss(
            X, y, V, of_candidates, *margins, distance, t.get("weights"), options["reduction"]
        )

    return Trial(
        _call(module, pairs), expected, tensors, tuple(pairs.tensors), wanted_of(draw, *tensors), pairs.compute,
        digits(pairs.X.shape[1], 1.0), [pairs.sets[0]],
    )  # fmt: skip


def _computed(X: Tensor) -> torch.dtype:
    return torch.float64 if X.dtype == torch.float64 else torch.float32


def memory_contrastive(draw: Draw) -> Trial:
    pairs, options = drawn(draw), options_of(draw)
    if pairs.V is not None and pairs.compute != _computed(pairs.X):
        # The two terms are of two types then, and of two precisions.
        pairs.V = draw(matrices(pairs.m, pairs.X.shape[1], pairs.X.dtype))
    margin, variant = draw(st.sampled_from([0.137, 0.52])), draw(st.sampled_from(["paper", "xbm", "authors"]))
    weights = _weights(draw, pairs)
    module = losses.MemoryContrastiveLoss(margin, variant=variant, **options)
    tensors = pairs.tensors | ({} if weights is None else {"weights": weights})
    y, of_candidates = _reference_labels(pairs)
    both = [pair_sets(y)[0]] + ([] if pairs.V is None else [pairs.sets[0]])

    def expected(t: Tensors):
        X, V, w = t["embeddings"], t.get("candidates"), t.get("weights")
        if of_candidates is y:
            return _another_view(X, y, V, margin, variant, w, options["reduction"])
        return per_sample_memory_loss(X, y, V, of_candidates, margin, variant, w, options["reduction"])

    return Trial(
        _call(module, pairs), expected, tensors, tuple(pairs.tensors), wanted_of(draw, *tensors), pairs.compute,
        digits(pairs.X.shape[1], 2.0), both,
    )  # fmt: skip


def _another_view(
    X: Tensor, y: Tensor, V: Tensor, margin: float, variant: str, w: Tensor | None, reduction: str
) -> Tensor:
    """As ``per_sample_memory_loss`` with a bank whose row i is sample i seen anew."""
    present = without_absent(y, w)
    positive, negative = pair_sets(present)
    of_batch = per_sample_memory_loss(X, y, None, None, margin, variant, w, "none")
    S = python_ref.anchor.cosine_similarity(X, V)
    if variant == "paper":
        of_bank = ((S - margin).clamp(min=0) * negative).sum(1) - (S * positive).sum(1)
    else:
        attracted, repelled = positive & (S < 1 - 1e-5), negative & (margin < S)
        of_bank = ((1 - S) * attracted).sum(1) + (S * repelled).sum(1)
    if variant == "authors" and w is not None and len(X):
        of_bank = of_bank * max(1, int((w > 0).sum())) / len(X)
    if w is not None:
        of_bank = of_bank * w
    whole = of_batch + of_bank
    return whole if reduction == "none" else whole.sum() / max(1, len(X) if w is None else int((w > 0).sum()))


def bspml(draw: Draw) -> Trial:
    pairs, options = drawn(draw), options_of(draw)
    pairs.V = pairs.candidate_labels = None
    alpha, beta = draw(st.sampled_from([2.0, 300.0])), draw(st.sampled_from([1.0, 50.0]))
    base, epsilon, exclude = draw(st.sampled_from([0.5, 1.0])), draw(st.sampled_from([0.037, 0.11])), draw(flags)
    weights = _weights(draw, pairs)
    settings: dict[str, Any] = {"exclude_zero_weights": exclude, **options}
    module = losses.BSPMLLoss(alpha, beta, base, epsilon, **settings)
    y = pairs.labels.long()
    w = torch.ones(len(y), dtype=torch.float64) if weights is None else weights.double()

    def call(t: Tensors):
        return module(t["embeddings"], pairs.labels, sample_weights=weights)

    def expected(t: Tensors):
        if len(y) == 0:
            return python_ref.mean_over_samples(0 * t["embeddings"].sum(1), None, options["reduction"])
        labels = without_absent(y, w) if exclude else y
        losses_of = python_ref.weighted_batch_loss(t["embeddings"], labels, w, alpha, beta, base, epsilon)
        return losses_of if options["reduction"] == "none" else losses_of.sum() / max(1, len(y))

    return Trial(
        call, expected, pairs.tensors, ("embeddings",), wanted_of(draw, "embeddings"), pairs.compute,
        digits(pairs.X.shape[1], base), [pairs.sets[0]], steepness=max(alpha, beta),
    )  # fmt: skip


TRIALS = {
    "MultiSimilarityLoss": multi_similarity,
    "ContrastiveLoss": contrastive,
    "MemoryContrastiveLoss": memory_contrastive,
    "BSPMLLoss": bspml,
}
