"""Losses over classes: a softmax with a margin, a temperature, or several centres a class."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

import python_ref
from python_ref.anchor import cosine_similarity
from robustdml_ops import losses
from robustdml_ops.losses.sampling.drawn_classes import draw_classes
from tests.fuzz.draws import flags, generator_of, normal, sample_weights, seeds
from tests.fuzz.oracle import EPSILON, Tensors, Trial
from tests.fuzz.trials.batches import Batch, Draw, chance, digits, of_loss, wanted_of, with_parameters
from tests.fuzz.trials.losses_anchor import ignored, options_of, weights_of

scales = st.sampled_from([1.0, 16.0, 64.0])


def _trial(
    draw: Draw,
    batch: Batch,
    module: nn.Module,
    parameter: str,
    reference: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    shape: Callable[[Tensor], Tensor],
    H: int,
    y: Tensor,
    absent: Tensor | None,
    **settings: Any,
) -> Trial:
    """``reference`` takes embeddings, centres (C·H, D) and weights; ``shape`` turns centres into the parameter."""
    weights = draw(sample_weights(batch.B, batch.X.dtype))
    tensors = {"embeddings": batch.X, "centers": batch.P} | ({} if weights is None else {"weights": weights})
    copied = draw(flags)

    def call(t: Tensors):
        given = shape(t["centers"])
        given = given.contiguous() if copied else given
        return with_parameters(
            module, {parameter: given}, t["embeddings"], batch.labels, sample_weights=t.get("weights")
        )

    def expected(t: Tensors):
        return reference(t["embeddings"], t["centers"], weights_of(t.get("weights"), absent, batch))

    own = torch.arange(batch.C // H) == y[:, None]
    # lse − target, and 1 − P, are differences of numbers of the size of the logits, and of 1.
    heaviest = 1.0 if weights is None or not batch.B else float(weights.max())
    steepness = settings["steepness"]
    return Trial(
        call, expected, tensors, ("embeddings", "centers"), wanted_of(draw, *tensors), batch.compute,
        digits(batch.D, settings.get("shift", 0.0)), [own.repeat_interleave(H, 1)], steepness=steepness,
        least=8 * EPSILON[batch.compute] * steepness * heaviest * (1 + settings.get("shift", 0.0)),
        saturated=1.5 * steepness * heaviest,
        cancelled=steepness * (1 + settings.get("shift", 0.0)),  # that of a weight is a sample's loss
    )  # fmt: skip


def _distinct(draw: Draw, batch: Batch) -> None:
    """No two centres of a class alike: which of equal ones is the largest is for rounding to say."""
    noise = normal(generator_of(draw(seeds)), *batch.P.shape)
    lengths = batch.P.double().abs().amax(1, keepdim=True)
    batch.P = (batch.P.double() + lengths * noise).to(batch.P.dtype)


def _started(draw: Draw, H: int = 1) -> tuple[Batch, dict[str, Any], Tensor, Tensor | None]:
    batch, options = of_loss(draw, H), options_of(draw)
    y = batch.y
    return batch, options, y, ignored(draw, batch, options)


def proxy_nca(draw: Draw) -> Trial:
    batch, options, y, absent = _started(draw)
    scale, include = draw(st.sampled_from([0.5, 8.0, 32.0])), draw(flags) or batch.C == 1
    module = losses.ProxyNCALoss(batch.C, batch.D, scale, include_positive=include, **options)

    def reference(X: Tensor, P: Tensor, weights: Tensor | None) -> Tensor:
        return python_ref.mean_over_samples(
            python_ref.proxy_nca_losses(X, P, y, scale, include), weights, options["reduction"]
        )

    return _trial(draw, batch, module, "proxies", reference, lambda P: P, 1, y, absent, steepness=2 * scale)


def normalized_softmax(draw: Draw) -> Trial:
    batch, options, y, absent = _started(draw)
    temperature, drawn = draw(st.sampled_from([0.01, 0.05, 1.0])), None
    if absent is None and batch.C > 1 and chance(draw):
        options |= {"negative_share": draw(st.sampled_from([0.01, 0.5])), "negative_seed": draw(st.integers(0, 2**62))}
        options["negative_correction"] = draw(flags)
        drawn = draw_classes(y, batch.C, options["negative_share"], torch.tensor([options["negative_seed"], 0]))
    module = losses.NormalizedSoftmaxLoss(batch.C, batch.D, temperature, **options)

    def reference(X: Tensor, P: Tensor, weights: Tensor | None) -> Tensor:
        if drawn is None:
            return python_ref.normalized_softmax_loss(X, y, P, temperature, weights, options["reduction"])
        stands_for = drawn.weights(torch.float64)
        stands_for = stands_for if options["negative_correction"] else torch.ones_like(stands_for)
        logits = cosine_of(X, P) / temperature
        each = python_ref.sampled_cross_entropy(logits, y, drawn.classes, stands_for)
        return python_ref.mean_over_samples(each, weights, options["reduction"])

    return _trial(draw, batch, module, "W", reference, lambda P: P.t(), 1, y, absent, steepness=1 / temperature)


def cosine_of(X: Tensor, P: Tensor) -> Tensor:
    """By the module's attribute, so that a run with moved cosines has those."""
    return python_ref.anchor.cosine_similarity(X, P)


def cosface(draw: Draw) -> Trial:
    batch, options, y, absent = _started(draw)
    margin, scale = draw(st.sampled_from([0.0, 0.35, 1.0])), draw(scales)
    module = losses.CosFaceLoss(batch.C, batch.D, margin, scale, **options)

    def reference(X: Tensor, P: Tensor, weights: Tensor | None) -> Tensor:
        return python_ref.cosface_loss(X, y, P, margin, scale, weights, options["reduction"])

    return _trial(draw, batch, module, "W", reference, lambda P: P.t(), 1, y, absent, steepness=scale, shift=margin)


def _arcface(draw: Draw, kind: type[nn.Module], H: int) -> Trial:
    batch, options, y, absent = _started(draw, H)
    # In one dimension all angles are 0 or π, where the derivative of a margin has a pole.
    margin = draw(st.sampled_from([0.0, 28.6, 100.0])) if batch.D > 1 else 0.0
    scale = draw(scales)
    if H > 1:
        assume(batch.D > 1)
        _distinct(draw, batch)
    more = {"sub_centers": H} if kind is losses.SubCenterArcFaceLoss else {}
    module = kind(batch.C // H, batch.D, margin, scale, **more, **options)

    def reference(X: Tensor, P: Tensor, weights: Tensor | None) -> Tensor:
        centers = P if H == 1 else P.reshape(-1, H, P.shape[1])
        return python_ref.arcface_loss(X, y, centers, margin, scale, weights, options["reduction"])

    return _trial(draw, batch, module, "W", reference, lambda P: P.t(), H, y, absent, steepness=3 * scale, shift=1.0)


def arcface(draw: Draw) -> Trial:
    return _arcface(draw, losses.ArcFaceLoss, 1)


def subcenter_arcface(draw: Draw) -> Trial:
    return _arcface(draw, losses.SubCenterArcFaceLoss, draw(st.integers(2, 4)))


def soft_triple(draw: Draw) -> Trial:
    H = draw(st.integers(1, 4))
    batch, options, y, absent = _started(draw, H)
    la, gamma, margin = (
        draw(st.sampled_from([1.0, 20.0])),
        draw(st.sampled_from([0.05, 0.1, 1.0])),
        draw(st.sampled_from([0.0, 0.01])),
    )
    regularized = H > 1 and options["reduction"] == "mean" and _apart(batch.P, H)
    weight = draw(st.sampled_from([0.0, 0.3])) if regularized else 0.0
    module = losses.SoftTripleLoss(batch.C // H, batch.D, H, la, gamma, margin, regularizer_weight=weight, **options)

    def reference(X: Tensor, P: Tensor, weights: Tensor | None) -> Tensor:
        centers = P.reshape(-1, H, P.shape[1])
        loss = python_ref.soft_triple_loss(X, y, centers, la, gamma, margin, weights, options["reduction"])
        return loss + weight * python_ref.soft_triple_regularizer(centers) if weight else loss

    steepness = la * (1 + 2 / gamma)
    return _trial(
        draw, batch, module, "fc", reference, lambda P: P.t(), H, y, absent, steepness=steepness, shift=margin
    )


def _apart(P: Tensor, H: int) -> bool:
    """Whether no two centres of a class meet: the root in the regulariser has no derivative there."""
    P = P.double() / (1e-300 + P.double().abs().amax(1, keepdim=True))
    centers = P.reshape(-1, H, P.shape[1])
    return all(float(cosine_similarity(c, c).fill_diagonal_(0).max()) < 0.99 for c in centers)


TRIALS = {
    "ProxyNCALoss": proxy_nca,
    "NormalizedSoftmaxLoss": normalized_softmax,
    "CosFaceLoss": cosface,
    "ArcFaceLoss": arcface,
    "SubCenterArcFaceLoss": subcenter_arcface,
    "SoftTripleLoss": soft_triple,
}
