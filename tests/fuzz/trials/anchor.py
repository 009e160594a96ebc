"""The log-sum-exps over a batch: ``anchor_lse`` and ``anchor_loss``."""

from functools import partial

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid

from python_ref import anchor
from robustdml_ops import ops
from tests.fuzz.draws import backends, flags, generator_of, normal, seeds, uniform
from tests.fuzz.oracle import Tensors, Trial
from tests.fuzz.trials.batches import Batch, Draw, chance, digits, proxied, wanted_of

alphas = st.sampled_from([0.5, 2.0, 16.0, 32.0, 100.0, 1e3])
LIMIT = 0.3718  # a cosine that no hostile batch has


def biases(draw: Draw, batch: Batch) -> Tensors:
    """Biases of every kind: none, one for both sides, large, −∞ for absent samples; perhaps of the anchors."""
    generator = generator_of(draw(seeds))
    size = draw(st.sampled_from([0.0, 1.0, 30.0, 200.0]))
    positive = (size * normal(generator, batch.B)).to(batch.compute)
    negative = positive.clone() if draw(flags) else (size * normal(generator, batch.B)).to(batch.compute)
    if chance(draw):
        absent = uniform(generator, batch.B) < 0.4
        positive, negative = positive.masked_fill(absent, -torch.inf), negative.masked_fill(absent, -torch.inf)
    found = {"positive": positive, "negative": negative}
    if draw(flags):
        found["anchor"] = (size * normal(generator, batch.C)).to(batch.compute)
    return found


def sets(draw: Draw, batch: Batch) -> tuple[object, Tensor, Tensor, float]:
    """Sets as the op takes them; who is positive and log weights, (C, B); and the error of an exponent in cosines."""
    kind = draw(st.sampled_from(["labels", "labels", "confidences", "factors"]))
    if kind == "labels":
        return ops.LabelSets.of(batch.y), batch.of_class, torch.zeros(batch.C, batch.B, dtype=torch.float64), 0.0
    generator = generator_of(draw(seeds))
    beta, threshold = draw(st.sampled_from([0.0, 1.0, 100.0])), draw(st.sampled_from([0.1, 0.3, 0.77]))
    if kind == "confidences":
        c = uniform(generator, batch.B, batch.C).to(batch.compute)
        given = ops.ConfidenceSets(beta, threshold, confidences=c)
        c = c.double()
    else:
        hidden, weight = normal(generator, batch.B, 5), normal(generator, batch.C, 5)
        parts = [part.to(batch.compute) for part in (hidden, weight, normal(generator, batch.C))]
        given = ops.ConfidenceSets(beta, threshold, None, *parts)
        c = torch.sigmoid(parts[0].double() @ parts[1].double().t() + parts[2].double())
    return given, (c > threshold).t(), logsigmoid(beta * (c - threshold).abs()).t(), 40 * beta


def _reference(alpha: float, positive: Tensor, log_weight: Tensor, limit: float | None):
    def sums(t: Tensors) -> tuple[Tensor, Tensor]:
        S = anchor.cosine_similarity(t["proxies"], t["embeddings"])
        for_anchor = t["anchor"][:, None] if "anchor" in t else 0.0
        # A sample whose bias is −∞ is absent.
        present = torch.isfinite(t["positive"]), torch.isfinite(t["negative"])
        remaining = anchor.without_similar(~positive & present[1], S, limit)
        return (
            anchor.log_one_plus_sum_exp(log_weight - alpha * S + t["positive"], positive & present[0]),
            anchor.log_one_plus_sum_exp(log_weight + alpha * S + t["negative"] + for_anchor, remaining),
        )

    return sums


def _trial(draw: Draw, scaled: bool) -> Trial:
    batch, alpha, backend = proxied(draw), draw(alphas), draw(backends)
    added = biases(draw, batch)
    given, positive, log_weight, blurred = sets(draw, batch)
    shared = draw(flags) and torch.equal(added["positive"], added["negative"])
    tensors = {"embeddings": batch.X, "proxies": batch.P, **added}
    names = ["embeddings", "proxies", *(() if shared else added)]
    largest = max(
        [float(b[torch.isfinite(b)].abs().max()) for b in added.values() if torch.isfinite(b).any()], default=0.0
    )
    limit = draw(st.sampled_from([None, None, LIMIT]))
    reference, scales = _reference(alpha, positive, log_weight, limit), None
    settings = {"alpha": alpha, "drop_similar_negatives": limit, "backend": backend}
    if scaled:
        generator = generator_of(draw(seeds))
        shapes = [(batch.C,) if draw(flags) else () for _ in range(2)]
        scales = [(2 * uniform(generator, *shape)).to(batch.compute) for shape in shapes]

    def call(t: Tensors):
        at = ops.AnchorBiases(t["positive"], t["positive"] if shared else t["negative"], t.get("anchor"))
        if scales is None:
            return tuple(ops.anchor_lse(t["embeddings"], t["proxies"], given, at, **settings))
        return ops.anchor_loss(t["embeddings"], t["proxies"], given, at, *scales, **settings)

    def expected(t: Tensors):
        lse = reference(t)
        if scales is None:
            return lse
        # Terms of either sign: their sizes are kept apart, for what rounding does to a sum of them.
        return sum((scale.double() * each).sum() for scale, each in zip(scales, lse, strict=True))

    return Trial(
        call,
        expected,
        tensors,
        ("embeddings", "proxies"),
        wanted_of(draw, *names),
        batch.compute,
        digits(batch.D, largest / alpha, blurred / alpha),
        [batch.of_class],
        steepness=alpha,
    )


TRIALS = {"anchor_lse": partial(_trial, scaled=False), "anchor_loss": partial(_trial, scaled=True)}
