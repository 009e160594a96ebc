"""The Proxy-Anchor family."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import python_ref
from robustdml_ops import losses
from robustdml_ops.losses.sampling.drawn_classes import draw_classes
from tests.fuzz.draws import backends, flags, generator_of, normal, sample_weights, seeds, uniform
from tests.fuzz.oracle import Tensors, Trial
from tests.fuzz.trials.batches import Batch, Draw, chance, digits, of_loss, wanted_of, with_parameters

alphas = st.sampled_from([0.5, 2.0, 16.0, 32.0, 100.0])
margins = st.sampled_from([-0.3, 0.0, 0.1, 1.5])
reductions = st.sampled_from(["mean", "mean", "none"])


def options_of(draw: Draw) -> dict[str, Any]:
    return {"reduction": draw(reductions), "backend": draw(backends)}


def ignored(draw: Draw, batch: Batch, options: dict[str, Any]) -> Tensor | None:
    """Perhaps samples whose label is ``ignore_index``: (B,) bool. Their labels become it."""
    if not chance(draw, 4):
        return None
    index = draw(st.sampled_from([-1, -100])) if batch.labels.dtype != torch.uint8 else 255
    absent = uniform(generator_of(draw(seeds)), batch.B) < 0.3
    options["ignore_index"] = index
    batch.labels = batch.labels.masked_fill(absent, index)
    return absent


def weights_of(given: Tensor | None, absent: Tensor | None, batch: Batch) -> Tensor | None:
    """What the reference takes for weights where samples are ignored."""
    if absent is None:
        return given
    return (torch.ones(batch.B, dtype=torch.float64) if given is None else given) * ~absent


def _logs(weights: Tensor | None) -> float:
    """The largest |log u|."""
    if weights is None or not (weights > 0).any():
        return 0.0
    return float(weights[weights > 0].double().log().abs().max())


def proxy_anchor(draw: Draw) -> Trial:
    batch, alpha, margin, options = of_loss(draw), draw(alphas), draw(margins), options_of(draw)
    y, of_class = batch.y, batch.of_class
    weights = draw(sample_weights(batch.B, batch.X.dtype))
    absent, drawn = ignored(draw, batch, options), None
    if chance(draw, 4) and absent is None and weights is None and options["reduction"] == "mean" and batch.C > 1:
        options |= {
            "negative_share": draw(st.sampled_from([0.01, 0.4, 0.99])),
            "negative_seed": draw(st.integers(0, 2**62)),
        }
        state = torch.tensor([options["negative_seed"], 0])
        drawn = draw_classes(y, batch.C, options["negative_share"], state)
    module = losses.ProxyAnchorLoss(batch.C, batch.D, margin, alpha, **options)
    names = ["embeddings", "proxies", *(["weights"] if weights is not None else [])]
    tensors = {"embeddings": batch.X, "proxies": batch.P} | ({} if weights is None else {"weights": weights})

    def call(t: Tensors):
        return with_parameters(
            module, {"proxies": t["proxies"]}, t["embeddings"], batch.labels, sample_weights=t.get("weights")
        )

    def expected(t: Tensors):
        if drawn is not None:
            return python_ref.sampled_proxy_anchor_loss(
                t["embeddings"], t["proxies"], y, drawn.classes, drawn.weights(torch.float64), alpha, margin
            )
        of = weights_of(t.get("weights"), absent, batch)
        return python_ref.proxy_anchor_loss(t["embeddings"], t["proxies"], y, alpha, margin, of, options["reduction"])

    return Trial(
        call, expected, tensors, ("embeddings", "proxies"), wanted_of(draw, *names), batch.compute,
        digits(batch.D, margin, _logs(weights) / alpha), [of_class if drawn is None else of_class[drawn.classes]],
        steepness=alpha,
    )  # fmt: skip


def smooth_proxy_anchor(draw: Draw) -> Trial:
    batch, alpha, margin, options = of_loss(draw), draw(alphas), draw(margins), options_of(draw)
    beta, threshold = draw(st.sampled_from([1.0, 100.0])), draw(st.sampled_from([0.1, 0.37]))
    weights = draw(sample_weights(batch.B, batch.X.dtype))
    generator, factored = generator_of(draw(seeds)), draw(flags)
    given: Any = uniform(generator, batch.B, batch.C).to(batch.compute)
    c = given.double()
    if factored:
        given = tuple(
            part.to(batch.compute)
            for part in (normal(generator, batch.B, 4), normal(generator, batch.C, 4), normal(generator, batch.C))
        )
        c = torch.sigmoid(given[0].double() @ given[1].double().t() + given[2].double())
    module = losses.SmoothProxyAnchorLoss(batch.C, batch.D, margin, alpha, beta, threshold, **options)
    tensors = {"embeddings": batch.X, "proxies": batch.P} | ({} if weights is None else {"weights": weights})

    def call(t: Tensors):
        return with_parameters(
            module, {"proxies": t["proxies"]}, t["embeddings"], given, sample_weights=t.get("weights")
        )

    def expected(t: Tensors):
        return python_ref.smooth_proxy_anchor_loss(
            t["embeddings"], t["proxies"], c, alpha, margin, beta, threshold, t.get("weights"), options["reduction"]
        )

    return Trial(
        call, expected, tensors, ("embeddings", "proxies"), wanted_of(draw, *tensors), batch.compute,
        digits(batch.D, margin, (_logs(weights) + 40 * beta) / alpha), [(c > threshold).t()], steepness=alpha,
    )  # fmt: skip


def adaptive_proxy_anchor(draw: Draw) -> Trial:
    batch, alpha, options = of_loss(draw), draw(alphas), options_of(draw)
    per_class, side = draw(flags), draw(st.sampled_from(["sample", "proxy"]))
    regularization = draw(st.sampled_from([0.0, 1.0, 64.0]))
    weights = draw(sample_weights(batch.B, batch.X.dtype))
    y, of_class = batch.y, batch.of_class
    absent = ignored(draw, batch, options)
    start = draw(st.sampled_from([0.01, 0.1, 1.5]))
    module = losses.AdaptiveProxyAnchorLoss(
        batch.C,
        batch.D,
        start,
        alpha,
        per_class=per_class,
        regularization=regularization,
        negative_margin=side,
        **options,
    )
    m = torch.full_like(module.margins.detach(), start)
    if per_class:
        m = m + 0.2 * uniform(generator_of(draw(seeds)), *m.shape)
    tensors = {"embeddings": batch.X, "proxies": batch.P, "margins": m.to(batch.compute)}
    tensors |= {} if weights is None else {"weights": weights}
    largest = float(tensors["margins"].abs().max())

    def call(t: Tensors):
        parameters = {"proxies": t["proxies"], "margins": t["margins"]}
        return with_parameters(module, parameters, t["embeddings"], batch.labels, sample_weights=t.get("weights"))

    def expected(t: Tensors):
        of = weights_of(t.get("weights"), absent, batch)
        return python_ref.adaptive_proxy_anchor_loss(
            t["embeddings"], t["proxies"], y, t["margins"], alpha, regularization, side, of, options["reduction"]
        )

    return Trial(
        call, expected, tensors, ("embeddings", "proxies"), wanted_of(draw, *tensors), batch.compute,
        digits(batch.D, largest, _logs(weights) / alpha), [of_class], steepness=alpha,
        cancelled=2 * alpha * (1 + regularization) * (1 + batch.B),  # that of a margin: a share minus the regulariser's
    )  # fmt: skip


TRIALS = {
    "ProxyAnchorLoss": proxy_anchor,
    "SmoothProxyAnchorLoss": smooth_proxy_anchor,
    "AdaptiveProxyAnchorLoss": adaptive_proxy_anchor,
}
