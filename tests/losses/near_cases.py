"""Proxies of bfloat16 near their samples: the gradient is what little is left beside the radial part of dS·X."""

import math
from functools import partial

import torch

from robustdml_ops import losses

C, D = 12, 64
# Relative distances of a proxy from its samples, and the cosines that they make.
NOISES = {"0.70": 1.0, "0.96": 0.3, "0.995": 0.1, "0.9999": 0.014}
# Mild exponents, so that the own class keeps its share of the gradient.
STEADY = {"alpha": 4.0, "margin": 1.0}
KINDS = {
    "Proxy-Anchor": partial(losses.ProxyAnchorLoss, **STEADY),
    "Proxy-Anchor, similar negatives dropped": partial(losses.ProxyAnchorLoss, **STEADY, drop_similar_negatives=0.9),
    "softmax": partial(losses.NormalizedSoftmaxLoss, temperature=0.25),
    "Proxy-NCA": partial(losses.ProxyNCALoss, softmax_scale=2),
    "CosFace": partial(losses.CosFaceLoss, margin=0.1, scale=4.0),
    # A sample's own slope grows as 1 / sin θ.
    "ArcFace": partial(losses.ArcFaceLoss, margin=28.6, scale=4.0),
    "AdaFace": partial(losses.AdaFaceLoss, margin=0.2, scale=4.0),
    "ArcFace with subcentres": partial(losses.SubCenterArcFaceLoss, margin=5.0, scale=4.0, sub_centers=1),
    "softmax, similar negatives dropped": partial(
        losses.NormalizedSoftmaxLoss, temperature=0.25, drop_similar_negatives=0.9
    ),
    "SoftTriple": partial(losses.SoftTripleLoss, centers_per_class=1, la=4.0),
}

# Rows of a bank in the place of proxies.
BANKS = {
    "multi-similarity": partial(losses.MultiSimilarityLoss, alpha=2.0, beta=4.0, base=1.0),
    "SupCon": partial(losses.SupConLoss, temperature=0.25),
    "contrastive": partial(losses.ContrastiveLoss, 1.0, -1.0, distance="cosine"),
}


def unit_in_bfloat16(random):
    """A row (D,) of integers over 2⁹, whose squares sum to exactly 1: its length is 1 in every type."""
    while True:
        row = (torch.randn(D - 2, generator=random) * 64).round().clamp(-255, 255)
        left = 2**18 - int(row.square().sum())
        for a in range(256):
            b = math.isqrt(max(0, left - a * a))
            if a * a + b * b == left and b < 256:
                return torch.cat([row, torch.tensor([a, b])]) / 2**9


def inputs(noise):
    """Embeddings, labels and proxies (C, D) near the embeddings of their class, in bfloat16."""
    random = torch.Generator().manual_seed(1)
    rows, labels = torch.stack([unit_in_bfloat16(random) for _ in range(C)]), torch.arange(2 * C) % C
    P = rows + noise * torch.randn(C, D, generator=random) / D**0.5
    return rows[labels].bfloat16(), labels, P.bfloat16()


def gradient(kind, noise, dtype, **options):
    """dL/dP of a loss whose matrix is made of bfloat16 numbers; of a bank dL/dX and dL/dP."""
    X, y, P = inputs(noise)
    if kind in BANKS:
        bank = P.to(dtype).requires_grad_()
        X = X.to(dtype).requires_grad_()
        BANKS[kind](**options)(X, y, ref_emb=bank, ref_labels=torch.arange(C)).backward()
        return torch.cat([X.grad, bank.grad]).double()
    loss_function = KINDS[kind](C, D, **options).to(dtype)
    (parameter,) = loss_function.parameters()
    with torch.no_grad():
        parameter.copy_(P if parameter.shape == P.shape else P.t())
    loss_function(X.to(dtype).requires_grad_(), y).backward()
    return parameter.grad.double()


def assert_as_exact_as_rounding(kind, noise, **options):
    """At most twice the error of the gradient that is rounded once."""
    found, exact = gradient(kind, noise, torch.bfloat16, **options), gradient(kind, noise, torch.float64)
    rounding = (exact.bfloat16().double() - exact).norm() / exact.norm()
    error = (found - exact).norm() / exact.norm()
    assert 1e-3 < rounding < 3e-3
    assert error <= 2 * rounding, f"{float(error):.4f}, and rounding alone {float(rounding):.4f}"
