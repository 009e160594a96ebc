"""Rows of every length that a type has: values as of unit rows, and gradients of 1 / length."""

import torch

from robustdml_ops import ops

# Powers of two: a scaled row has the digits of the row, but for numbers below the smallest normal one.
FLOAT32 = [2.0**exponent for exponent in (-125, -100, -66, -40, 40, 66, 100, 122)]
FLOAT64 = [2.0**exponent for exponent in (-1020, -664, -332, -100, 100, 332, 664, 1018)]
SCALES = [(torch.float32, scale) for scale in FLOAT32] + [(torch.float64, scale) for scale in FLOAT64]
ENDS = [SCALES[place] for place in (0, 7, 8, 15)]  # of each type
B, C, D = 12, 15, 10
WHICH = ["embeddings", "proxies", "both", "some"]


def _labels(X):
    return (torch.arange(B) % 5).to(X.device)


def _anchor(X, P, backend):
    sets, zeros = ops.LabelSets.of(_labels(X)), X.new_zeros(B)
    return torch.cat(ops.anchor_lse(X, P, sets, ops.AnchorBiases(zeros, zeros), alpha=2.0, backend=backend))


def _anchor_loss(X, P, backend):
    sets, zeros, one = ops.LabelSets.of(_labels(X)), X.new_zeros(B), X.new_ones(())
    return ops.anchor_loss(X, P, sets, ops.AnchorBiases(zeros, zeros), one, one, alpha=2.0, backend=backend)[None]


def _classes(X, P, backend):
    return torch.cat(ops.class_lse(X, P, _labels(X), scale=2.0, backend=backend))


def _centers(X, P, backend):
    labels, P = _labels(X), P.view(5, 3, D)
    return torch.cat(ops.class_lse(X, P, labels, scale=2.0, pooling="softmax", gamma=0.5, backend=backend))


def _pairs(X, P, backend):
    labels, others = _labels(X), (torch.arange(C) % 4).to(X.device)
    return torch.cat(ops.pair_lse(X, labels, P, others, alpha=2.0, beta=4.0, base=0.5, epsilon=0.1, backend=backend))


def _hinges(X, P, backend):
    labels, others = _labels(X), (torch.arange(C) % 4).to(X.device)
    margins = {"positive_margin": -0.3, "negative_margin": -1.2}
    hinge = ops.pair_hinge(X, labels, P, others, **margins, distance="euclidean", backend=backend)
    return torch.cat([hinge.positive, hinge.negative])


def _batch_with_itself(X, P, backend):
    labels = (torch.arange(B + C) % 4).to(X.device)
    hinge = ops.pair_hinge(torch.cat([X, P]), labels, positive_margin=0.9, negative_margin=-0.4, backend=backend)
    return torch.cat([hinge.positive, hinge.negative])


OPS = {
    "similarity": lambda X, P, backend: ops.similarity(X, P, backend=backend),
    "few similarities": lambda X, P, backend: ops.similarity(X[:3], P, backend=backend),
    "anchor": _anchor,
    "anchor loss": _anchor_loss,
    "classes": _classes,
    "centers": _centers,
    "pairs": _pairs,
    "hinges": _hinges,
    "batch with itself": _batch_with_itself,
}


def _factors(which, scale, dtype):
    """What rows of X (B, 1) and of P (C, 1) are multiplied by."""
    X, P = torch.ones(B, 1, dtype=dtype), torch.ones(C, 1, dtype=dtype)
    if which in ("embeddings", "both"):
        X *= scale
    if which in ("proxies", "both"):
        P *= scale
    if which == "some":  # beside rows of ordinary length, and zero rows
        X[2], P[3], P[4] = scale, scale, 1 / scale
        X[5] = P[6] = 0
    return X, P


def _value_and_gradients(op, X, P, weights, backend):
    X, P = X.detach().requires_grad_(), P.detach().requires_grad_()
    value = op(X, P, backend)
    return value.detach(), *torch.autograd.grad((value * weights(value)).sum(), (X, P))


def _matrices(dtype, scale, which, device):
    """Rows of lengths near 1 in float64, 0 where they are zero rows; the same of any length; and the factors."""
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(n, D, generator=generator, dtype=torch.float64).to(dtype) for n in (B, C)]
    factors = _factors(which, scale, dtype)
    exact = [matrix.double() * (factor != 0) for matrix, factor in zip(matrices, factors, strict=True)]
    return exact, [(matrix * factor).to(device) for matrix, factor in zip(matrices, factors, strict=True)], factors


def check(name, dtype, scale, which, backend, device="cpu", columns=False):
    """An op on rows of any length against itself in float64 on the unit rows of the same, a product apart."""
    weights = lambda value: (torch.arange(value.numel()) % 7 / 64 - 0.04).view(value.shape).to(value)  # noqa: E731
    exact, scaled, factors = _matrices(dtype, scale, which, device)
    expected = _value_and_gradients(OPS[name], *exact, weights, "eager")
    if columns:
        scaled = [matrix.t().contiguous().t() for matrix in scaled]
    value, *gradients = _value_and_gradients(OPS[name], *scaled, weights, backend)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(value.cpu().double(), expected[0], rtol=tolerance, atol=tolerance)
    for gradient, factor, truth in zip(gradients, factors, expected[1:], strict=True):
        # In two steps: the product of a factor and a gradient of 1 / factor stays within the type.
        root = factor.double().sqrt()
        got = gradient.cpu().double() * root * root
        torch.testing.assert_close(
            got, truth * (factor != 0), rtol=tolerance, atol=tolerance * float(truth.abs().max())
        )


def check_value(name, dtype, scale, which, backend, device="cpu"):
    """As :func:`check`, where no gradient is asked for: then some ops take another way."""
    exact, scaled, _ = _matrices(dtype, scale, which, device)
    value = OPS[name](*scaled, backend)
    torch.testing.assert_close(value.cpu().double(), OPS[name](*exact, "eager"), rtol=2e-5, atol=2e-5)
