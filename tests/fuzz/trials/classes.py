"""The log-sum-exp over classes: ``class_lse``."""

import torch
from hypothesis import assume
from hypothesis import strategies as st

from python_ref import class_lse as reference
from robustdml_ops import ops
from tests.fuzz.draws import backends, flags, generator_of, normal, seeds, uniform
from tests.fuzz.oracle import EPSILON, Tensors, Trial
from tests.fuzz.trials.batches import Draw, chance, digits, proxied, wanted_of

scales = st.sampled_from([-3.0, 0.0, 1.0, 20.0, 64.0, 1e3])


def class_lse(draw: Draw) -> Trial:
    pooling = draw(st.sampled_from(["none", "none", "max", "softmax"]))
    H = 1 if pooling == "none" else draw(st.integers(1, 4))
    batch, scale, backend = proxied(draw, H), draw(scales), draw(backends)
    generator = generator_of(draw(seeds))
    if pooling == "max" and H > 1:  # which of equal ones is the largest is for rounding to say
        lengths = batch.P.double().abs().amax(1, keepdim=True)
        batch.P = (batch.P.double() + lengths * normal(generator, *batch.P.shape)).to(batch.P.dtype)
        assume(batch.D > 1)
    given: float | torch.Tensor = scale
    if draw(flags):
        given = (scale * (0.5 + uniform(generator, batch.C // H))).to(batch.compute)
    bias = None
    if draw(flags):
        bias = (draw(st.sampled_from([1.0, 30.0, 500.0])) * normal(generator, batch.C // H)).to(batch.compute)
        if chance(draw):
            bias = bias.masked_fill(uniform(generator, len(bias)) < 0.4, -torch.inf)
    settings = {
        "target_bias": draw(st.sampled_from([0.0, -5.0, 2.5])),
        "exclude_target": draw(flags),
        "pooling": pooling,
        "gamma": draw(st.sampled_from([0.05, 1.0])) if pooling == "softmax" else None,
        "normalize_proxies": draw(flags),
    }
    lengths = 1.0
    if not settings["normalize_proxies"]:
        # As they are: class means, whose lengths are at most 1, or any numbers of that size.
        batch.P = (batch.P.double() / (1e-30 + batch.P.double().abs().amax(1, keepdim=True))).to(batch.P.dtype)
        lengths = max(1.0, float(torch.linalg.vector_norm(batch.P.double(), dim=1).max()))
    elsewhere = draw(flags)

    def shaped(P: torch.Tensor) -> torch.Tensor:
        return P if pooling == "none" else P.reshape(-1, H, batch.D)

    def call(t: Tensors):
        return tuple(
            ops.class_lse(
                t["embeddings"],
                shaped(t["proxies"]),
                batch.labels,
                scale=given,
                bias=bias,
                elsewhere=elsewhere,
                backend=backend,
                **settings,
            )
        )

    def expected(t: Tensors):
        return reference.class_log_sum_exp(
            t["embeddings"],
            shaped(t["proxies"]),
            batch.y,
            given.double() if isinstance(given, torch.Tensor) else given,
            None if bias is None else bias.double(),
            **settings,
        )

    rows = ("embeddings", "proxies") if settings["normalize_proxies"] else ("embeddings",)
    largest = 0.0 if bias is None else float(bias[torch.isfinite(bias)].abs().sum() > 0) * 500
    steepness = abs(scale) * 1.5 * lengths
    if settings["gamma"] is not None:
        steepness += 2 / settings["gamma"]
    own = torch.arange(batch.C // H) == batch.y[:, None]
    return Trial(
        call,
        expected,
        {"embeddings": batch.X, "proxies": batch.P},
        rows,
        wanted_of(draw, "embeddings", "proxies"),
        batch.compute,
        digits(batch.D, lengths, (largest + abs(settings["target_bias"])) / max(1.0, steepness)),
        [own.repeat_interleave(H, 1)],
        steepness=steepness,
        least=8 * EPSILON[batch.compute] * (1 + steepness),
    )


TRIALS = {"class_lse": class_lse}
