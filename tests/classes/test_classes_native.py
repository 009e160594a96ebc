"""The native class log-sum-exp called by address: the CPU's, and the CUDA kernels in emulation.

No torch in here, so that the sanitized build runs these tests in seconds.
"""

import numpy as np
import pytest

from tests.native.by_address import DTYPES, SUFFIX, Device

POOLINGS = ["none", "max", "softmax"]
# A single class or sample, sizes around the blocks of the CPU (32 × 128) and of the kernels (8 × 32).
SHAPES = [(1, 1), (3, 31), (33, 33), (70, 129), (9, 300), (300, 5)]


@pytest.fixture(params=["cpu", "emulated"])
def device(request):
    return Device.of(request)


class Problem:
    """Two chunks of random similarities, so that sums are continued; outputs poisoned, expectations in float64."""

    first = 4
    gamma = 0.2

    def __init__(self, classes, B, dtype, pooling="none", H=3, scale="vector", bias=True, size=8.0):
        rng = np.random.default_rng([classes, B])
        self.dtype, self.pooling, self.H = dtype, pooling, 1 if pooling == "none" else H
        self.classes, self.B = classes, B
        self.S = np.clip(rng.normal(0, 0.4, (2, classes, self.H, B)), -1, 1).astype(dtype)
        self.scale = (size * rng.uniform(-0.2, 1, 2 * classes if scale == "vector" else 1)).astype(dtype)
        self.bias = None
        if bias:
            self.bias = rng.normal(0, 1, 2 * classes).astype(dtype)
            self.bias[rng.random(2 * classes) < 0.2] = -np.inf
        # Some labels of other chunks on either side.
        self.labels = rng.integers(self.first - 2, self.first + 2 * classes + 2, B)
        self.dlse, self.dlogit = rng.normal(0, 1, (2, B)).astype(dtype)

    def chunk(self, device, number, S, **proxies):
        span = slice(number * self.classes, (number + 1) * self.classes)
        scale = self.scale[span] if len(self.scale) > 1 else self.scale
        return getattr(device.module, f"ClassChunk_{SUFFIX[self.dtype]}")(
            S=S.ctypes.data,
            classes=self.classes,
            centers=self.H,
            B=self.B,
            scale=scale.ctypes.data,
            scale_stride=int(len(self.scale) > 1),
            bias=0 if self.bias is None else self.bias[span].ctypes.data,
            pooling=self.pooling,
            gamma=self.gamma,
            **proxies,
        )

    def expected(self):
        """Sums without the label, logits of the labels, and dS."""
        S = self.S.astype(np.float64).reshape(2 * self.classes, self.H, self.B)
        if self.pooling == "max":
            weight = np.zeros_like(S)
            np.put_along_axis(weight, S.argmax(1)[:, None], 1.0, 1)
            pooled, slope = S.max(1), weight
        else:
            weight = np.exp(S / self.gamma) / np.exp(S / self.gamma).sum(1, keepdims=True)
            pooled = (weight * S).sum(1)
            slope = weight * (1 + (S - pooled[:, None]) / self.gamma)
        scale = np.broadcast_to(self.scale.astype(np.float64)[:, None], pooled.shape)
        bias = 0 if self.bias is None else self.bias.astype(np.float64)[:, None]
        logits = scale * pooled + bias
        own = np.arange(2 * self.classes)[:, None] + self.first == self.labels
        target = np.where(own.any(0), (np.where(own, logits, 0)).sum(0), -7.0)
        lse = np.logaddexp.reduce(np.where(own, -np.inf, logits), axis=0)
        softmax = np.exp(logits - np.where(lse == -np.inf, np.inf, lse))
        dlogits = np.where(own, self.dlogit, self.dlse * softmax)
        return lse, target, ((scale * dlogits)[:, None] * slope).reshape(self.S.shape)

    def run(self, device):
        shift, total = np.full(self.B, -np.inf), np.zeros(self.B)
        target = np.full(self.B, -7.0, self.dtype)
        for number in range(2):
            S = self.S[number].copy()
            chunk, first = self.chunk(device, number, S), self.first + number * self.classes
            sums = {"shift": shift, "total": total, "target": target}
            device.call("class_lse", self.dtype, chunk, self.labels, self.B, first_label=first, **sums)
        with np.errstate(divide="ignore"):
            lse = shift + np.log(total)
        given = np.where(lse == -np.inf, np.inf, lse).astype(self.dtype)
        dS = self.S.copy()
        for number in range(2):
            chunk, first = self.chunk(device, number, dS[number]), self.first + number * self.classes
            upstream = {"lse": given, "dlse": self.dlse, "dlogit": self.dlogit}
            device.call("class_lse_backward", self.dtype, chunk, self.labels, first_label=first, **upstream)
        return lse, target, dS

    def check(self, device):
        # A logit carries an absolute error of eps times its size, which is a relative one of its exponential.
        size = 1 + np.abs(self.scale).max()
        rtol = np.finfo(self.dtype).eps * (50 + 10 * size)
        for mine, exact in zip(self.run(device), self.expected(), strict=True):
            np.testing.assert_allclose(mine, exact, rtol=rtol, atol=rtol * size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize(("classes", "B"), SHAPES)
def test_shapes(device, classes, B, pooling, dtype):
    Problem(classes, B, dtype, pooling).check(device)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("options", [{"scale": "one", "bias": False}, {"size": 3000.0}, {"H": 1}], ids=str)
def test_options(device, options, pooling):
    Problem(40, 37, np.float32, pooling, **options).check(device)


def test_everything_masked(device):
    problem = Problem(9, 40, np.float32)
    problem.bias[:] = -np.inf
    lse, target, dS = problem.run(device)
    assert (lse == -np.inf).all()
    assert set(np.unique(target)) <= {-np.inf, -7.0}
    np.testing.assert_allclose(dS, problem.expected()[2], rtol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_nan_reaches_its_column_alone(device, pooling):
    problem = Problem(20, 40, np.float32, pooling, bias=False)
    clean, _, _ = problem.run(device)
    problem.labels[11] = problem.first - 1  # no class of these chunks
    clean[11] = np.nan
    problem.S[1, 6, -1, 11] = np.nan
    lse, _, _ = problem.run(device)
    np.testing.assert_array_equal(lse, clean)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_threads(native, pooling, threads):
    problem, device = Problem(111, 129, np.float32, pooling), Device("cpu", native, threads)
    problem.check(device)
    for a, b in zip(problem.run(device), problem.run(device), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_kernels_do_not_depend_on_the_order_of_threads(emulated, pooling, parts, monkeypatch):
    problem, device = Problem(70, 40, np.float32, pooling), Device("emulated", emulated, parts=parts)
    problem.check(device)
    forward = problem.run(device)
    monkeypatch.setenv("ROBUSTDML_EMULATION_REVERSE", "1")
    for a, b in zip(forward, problem.run(device), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_products_with_proxies_of_any_length_on_the_cpu(native, pooling):
    """Products with proxies of any length give what cosines give, and the gradient of the products."""
    plain, device = Problem(30, 40, np.float64, pooling), Device("cpu", native)
    rng = np.random.default_rng(0)
    inverse = rng.uniform(0.1, 9, 30 * plain.H)
    inverse[4] = 0
    products = rng.normal(0, 1, (30 * plain.H, 40))
    products[4] = 0
    cosines = products * inverse[:, None]
    results = []
    for S, proxies in ((products, {"inverse_norm": inverse.ctypes.data}), (cosines, {})):
        shift, total, target = np.full(40, -np.inf), np.zeros(40), np.zeros(40)
        summed, dS = S.copy(), S.copy()
        chunk = plain.chunk(device, 0, summed, **proxies)
        sums = {"shift": shift, "total": total, "target": target}
        device.call("class_lse", np.float64, chunk, plain.labels, first_label=plain.first, **sums)
        lse = shift + np.log(total)
        given = {"lse": lse, "dlse": plain.dlse, "dlogit": plain.dlogit}
        chunk = plain.chunk(device, 0, dS, **proxies)
        device.call("class_lse_backward", np.float64, chunk, plain.labels, first_label=plain.first, **given)
        results.append((lse, target, dS))
    (lse, target, dS), (lse_cosines, target_cosines, dcosines) = results
    np.testing.assert_allclose(lse, lse_cosines, rtol=1e-12)
    np.testing.assert_allclose(target, target_cosines, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(dS, dcosines * inverse[:, None], rtol=1e-9, atol=1e-12)
