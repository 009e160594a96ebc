"""Losses of single samples, and those that judge samples themselves: SuperLoss, language guidance, ProcSim."""

import torch
from hypothesis import strategies as st
from torch import Tensor

import python_ref
from robustdml_ops import losses
from tests.fuzz.draws import (
    backends,
    flags,
    floats,
    generator_of,
    label_vectors,
    matrices,
    normal,
    sample_weights,
    seeds,
    sizes,
)
from tests.fuzz.oracle import EPSILON, Check, Tensors, Trial, close
from tests.fuzz.trials.batches import Draw, digits, of_loss, wanted_of, with_parameters
from tests.fuzz.trials.scalars import computed, superloss_of


def super_loss(draw: Draw) -> Check:
    dtype, lam, fixed = draw(floats), draw(st.sampled_from([0.1, 1.0, 50.0])), draw(flags)
    reduction, generator = draw(st.sampled_from(["mean", "none"])), generator_of(draw(seeds))
    module = losses.SuperLoss(lam, 0.5 if fixed else None, reduction=reduction)
    batches = [normal(generator, draw(sizes)).mul(3).to(dtype) for _ in range(draw(st.integers(1, 3)))]

    def judge() -> None:
        seen: list[Tensor] = []
        for batch in batches:
            leaf = batch.detach().requires_grad_()
            value = module(leaf)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
            seen.append(batch.double())
            of_all = torch.cat(seen)
            tau = 0.5 if fixed else float(of_all.mean()) if len(of_all) else 0.0
            each, sigma = superloss_of(batch.double(), tau, lam)
            epsilon = EPSILON[torch.float32 if not fixed else computed(dtype)]  # the running mean is float32
            off = 64 * epsilon * (3 + lam + batch.double().abs()) * (sigma + 1)
            # σ has a root at the branch point, in the reference as well.
            rooted = (8 * epsilon * (4 + batch.double().abs()) / lam).sqrt() * 4
            n = max(1, len(batch)) if reduction == "mean" else 1
            expected = each.sum() / n if reduction == "mean" else each
            close("the loss", value, expected, off.sum() / n + 1e-30 if reduction == "mean" else off)
            close(
                "its gradient",
                slope,
                sigma / n,
                (sigma * rooted + torch.finfo(dtype).eps * sigma) / n + torch.finfo(dtype).tiny,
            )

    return Check(judge)


def language_guidance(draw: Draw) -> Trial:
    B, dtype = draw(sizes), draw(floats)
    X = draw(matrices(B, draw(st.integers(1, 9)), dtype))
    X[(X == 0).all(1)] = 1  # the reference takes a vector for like itself, also one that is zero
    texts = normal(generator_of(draw(seeds)), B, draw(st.integers(1, 3)), draw(st.integers(1, 6))).to(dtype)
    direction = draw(st.sampled_from(["forward", "backward"]))
    shift, temperature = draw(st.sampled_from([None, 0.0, 1.0])), draw(st.sampled_from([0.1, 1.0]))
    labels = draw(label_vectors(B, 4))
    reduction = draw(st.sampled_from(["mean", "none"]))
    weights = draw(sample_weights(B, dtype)) if draw(flags) else None
    module = losses.LanguageGuidanceLoss(direction, shift, temperature, reduction=reduction)
    tensors = {"embeddings": X} | ({} if weights is None else {"weights": weights})

    def call(t: Tensors):
        return module(t["embeddings"], texts, labels, sample_weights=t.get("weights"))

    def expected(t: Tensors):
        # Without a shift all labels differ, and only the diagonal, which is 1 anyway, is set.
        present = torch.ones(B, dtype=torch.bool) if weights is None else weights > 0
        y = torch.arange(B) if shift is None else labels.long()
        zero = t["embeddings"].sum(1) * 0
        if not present.any():
            return python_ref.mean_over_samples(zero, t.get("weights"), reduction)
        each = python_ref.language_guidance_losses(
            t["embeddings"][present], texts.double()[present], y[present], shift or 0.0, temperature, direction
        )
        return python_ref.mean_over_samples(
            zero.index_add(0, present.nonzero()[:, 0], each), t.get("weights"), reduction
        )

    heaviest = 1.0 if weights is None or not B else float(weights.max())
    compute, steepness = computed(dtype), 4 / temperature
    # A divergence is a difference of logarithms; its gradient one of probabilities.
    return Trial(
        call, expected, tensors, ("embeddings",), wanted_of(draw, "embeddings"), compute, digits(X.shape[1], 2.0),
        [torch.ones(B, B, dtype=torch.bool)], steepness=steepness,
        least=64 * EPSILON[compute] * heaviest * temperature**2 * (1 + 3 / temperature),
        saturated=3 * temperature * (1 + 3 / temperature) * heaviest,
    )  # fmt: skip


def super_contrastive(draw: Draw) -> Trial:
    B, dtype = draw(sizes), draw(floats)
    D = draw(st.integers(2, 9))
    # Directions that are apart: what near ones do to a mean of losses is for the tests of the loss itself.
    generator = generator_of(draw(seeds))
    X, labels = (
        (normal(generator, B, D) * torch.exp2(normal(generator, B, 1).round())).to(dtype),
        draw(label_vectors(B, 4)),
    )
    margins = draw(st.sampled_from([0.0, 0.213])), draw(st.sampled_from([0.47, 1.0]))
    lam = draw(st.sampled_from([0.1, 1.0, 50.0]))
    weights = draw(sample_weights(B, dtype))
    y = labels.long()

    def call(t: Tensors):
        return losses.SuperContrastiveLoss(*margins, lam)(t["embeddings"], labels, sample_weights=t.get("weights"))

    def expected(t: Tensors):
        w = t.get("weights")
        d = python_ref.anchor.unit_distance(t["embeddings"], t["embeddings"])
        same = y[:, None] == y
        present = torch.ones(B, B, dtype=torch.bool) if w is None else (w > 0) & (w > 0)[:, None]
        total = t["embeddings"].sum() * 0
        sides = ((same & ~torch.eye(B, dtype=torch.bool), d - margins[0]), (~same, margins[1] - d))
        for pairs, gap in sides:
            pairs, hinge = pairs & present, gap.clamp(min=0)
            if not pairs.any():
                continue
            value, _ = python_ref.superloss(hinge, float(hinge[pairs].detach().mean()), lam)
            value = value if w is None else value * w[:, None]
            above = pairs & (hinge > 0)
            total = total + (value * above).sum() / above.sum().clamp(min=1)
        return total

    heaviest = 1.0 if weights is None or not B else float(weights.max())
    tensors = {"embeddings": X} | ({} if weights is None else {"weights": weights})
    compute = computed(dtype)
    # The running means are float32, and σ follows them by 1/λ, up to the root at the branch point.
    mean = 4 * 2.0**-24 / lam
    return Trial(
        call, expected, tensors, ("embeddings",), wanted_of(draw, *tensors), compute, digits(D, 1.0),
        [y[:, None] == y], steepness=0.0, terms=64 + (8 * mean**0.5) / EPSILON[compute],
        least=heaviest * (64 * 2.0**-24 * (1 + lam) + 1e-6 * lam),
    )  # fmt: skip


def procsim(draw: Draw) -> Check | Trial:
    batch, backend = of_loss(draw), draw(backends)
    # Of pairs, which have no proxies, the sums are of the embeddings' type.
    batch.P = draw(matrices(batch.C, batch.D, batch.X.dtype))
    lam, dml = draw(st.sampled_from([0.1, 1.0, 10.0])), draw(st.sampled_from(["multi-similarity", "proxy-nca"]))
    detector = draw(st.sampled_from(["proxy-nca", "multi-similarity"]))
    drop, scale = dml == "multi-similarity" and draw(flags), draw(st.sampled_from([1.0, 3.0]))
    module = losses.ProcSimLoss(
        batch.C, batch.D, lam, 0.0, dml, "otsu", detector, drop_above=drop, softmax_scale=scale, backend=backend
    )
    y, with_proxies = batch.y, "proxy-nca" in (dml, detector)
    tensors = {"embeddings": batch.X} | ({"proxies": batch.P} if with_proxies else {})
    found = {}

    def parameters(t: Tensors):
        return {"proxy_nca.proxies": t["proxies"]} if with_proxies else {}

    def call(t: Tensors):
        return with_parameters(module, parameters(t), t["embeddings"], batch.labels)

    # What is above the cut, and by how much, is taken from the loss itself: the cut has trials of its own, and near
    # losses rounding may part at another place. Losses and σ are held to it below.
    step = Steps(module, parameters({name: tensor.detach() for name, tensor in tensors.items()}), batch)

    def expected(t: Tensors):
        X, P = t["embeddings"], t.get("proxies")
        found["losses"] = step.detecting(X, P, y, detector, scale)
        sigma = step.sigma()
        if dml == "proxy-nca":
            return (sigma * python_ref.proxy_nca_losses(X, P, y, scale)).sum() / max(1, batch.B)
        kept = torch.where(step.above(), torch.iinfo(torch.int64).min, y) if drop else y
        each = python_ref.multi_similarity_loss(X, kept, reduction="none")
        loss = (sigma * each).sum() / max(1, batch.B)
        if P is not None:
            loss = loss + python_ref.proxy_nca_losses(X.detach(), P, y, scale).sum() / max(1, batch.B)
        return loss

    masks = [batch.of_class.t()] if detector == "proxy-nca" else [y[:, None] == y]
    return Trial(
        call, expected, tensors, tuple(tensors), wanted_of(draw, *tensors), batch.compute, digits(batch.D, 1.0), masks,
        steepness=60.0, least=64 * EPSILON[batch.compute] * 2 * scale, saturated=3 * scale,
        after=lambda: step.check(found["losses"].detach(), lam, scale, batch),
    )  # fmt: skip


class Steps:
    """What one call of ProcSim made of a batch."""

    def __init__(self, module: losses.ProcSimLoss, parameters: Tensors, batch) -> None:
        wrapped = _StepOf(module)
        named = {f"module.{name}": tensor for name, tensor in parameters.items()}
        self.result = torch.func.functional_call(wrapped, named, (batch.X.detach(), batch.labels))

    def detecting(self, X: Tensor, P: Tensor | None, y: Tensor, detector: str, scale: float) -> Tensor:
        if detector == "proxy-nca":
            return python_ref.proxy_nca_losses(X, P, y, scale)
        return python_ref.multi_similarity_loss(X, y, reduction="none")

    def sigma(self) -> Tensor:
        return self.result.confidence.double()

    def above(self) -> Tensor:
        return self.result.losses > self.result.threshold

    def check(self, losses_of: Tensor, lam: float, scale: float, batch) -> None:
        """The losses are the reference's, and σ is that of the losses and the cut."""
        epsilon = EPSILON[batch.compute]
        off = 4 * digits(batch.D) * epsilon * (2 * scale + 50) * (1 + losses_of.abs())
        close("the detector's losses", self.result.losses, losses_of, off)
        truth = python_ref.confidence(self.result.losses.double(), float(self.result.threshold), lam)
        close("σ", self.result.confidence, truth, 64 * epsilon * (1 + self.result.losses.double().abs() / lam) * truth)


class _StepOf(torch.nn.Module):
    """``step`` as a call."""

    def __init__(self, module: losses.ProcSimLoss) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Tensor):
        return self.module.step(*arguments)


TRIALS = {
    "SuperLoss": super_loss,
    "LanguageGuidanceLoss": language_guidance,
    "SuperContrastiveLoss": super_contrastive,
    "ProcSimLoss": procsim,
}
