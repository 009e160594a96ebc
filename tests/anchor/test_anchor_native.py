"""The native functions called by address on host memory: the CPU's, and the CUDA kernels in emulation.

No torch in here, so that the sanitized build runs these tests in seconds.
"""

import anchor_oracle
import numpy as np
import pytest

from tests.native.by_address import DTYPES, SUFFIX, Device

# A single row or candidate, sizes around the vector and warp widths, several blocks, more than one pass of a block.
SHAPES = [(1, 1), (1, 31), (5, 33), (63, 32), (67, 257), (9, 600), (3, 5000)]


@pytest.fixture(params=["cpu", "emulated"])
def device(request):
    return Device.of(request)


class Problem:
    """Random similarities, biases and sets; poisoned outputs."""

    def __init__(self, rows, B, dtype, alpha=32.0, sets="labels", anchor=False, upstream="vector", biases=True):
        rng = np.random.default_rng([rows, B])
        self.dtype, self.alpha, self.sets, self.wants_biases = dtype, alpha, sets, biases
        self.first = 7
        self.S = np.clip(rng.normal(0, 0.3, (rows, B)), -1, 1).astype(dtype)
        self.positive_bias = (0.1 * alpha + rng.normal(0, 0.5, B)).astype(dtype)
        self.negative_bias = (0.1 * alpha + rng.normal(0, 0.5, B)).astype(dtype)
        # Absent samples, as sample_weights=0 makes them.
        absent = rng.random(B) < 0.1
        self.positive_bias[absent] = self.negative_bias[absent] = -np.inf
        self.anchor_bias = rng.normal(0, 0.5, rows).astype(dtype) if anchor else None
        self.upstream = None
        if upstream == "vector":  # any sign: a caller may weigh anchors as they like
            self.upstream = rng.normal(0, 1, (2, rows)).astype(dtype)
        elif upstream == "scalar":
            self.upstream = rng.normal(0, 1, (2, 1)).astype(dtype)
        self.beta, self.threshold = 100.0, 0.1
        # Some labels of other chunks on either side.
        self.labels = rng.integers(self.first - 2, self.first + rows + 2, B)
        confidences = np.where(rng.random((rows, B)) < 0.2, rng.random((rows, B)), 0.2 * rng.random((rows, B)))
        if sets == "logits":
            confidences = np.log(confidences) - np.log1p(-confidences)
        self.values = confidences.astype(dtype)

    def expected(self):
        rows, B = self.S.shape
        if self.sets == "labels":
            positive = self.labels == self.first + np.arange(rows)[:, None]
            weight = np.ones((rows, B))
        else:
            positive, weight = anchor_oracle.confidence_sets(
                self.values, self.sets == "logits", self.beta, self.dtype(self.threshold)
            )
        anchor = np.zeros(rows) if self.anchor_bias is None else self.anchor_bias
        upstream = np.zeros((2, 1)) if self.upstream is None else self.upstream
        return anchor_oracle.anchor_lse(
            self.S, self.alpha, self.positive_bias, self.negative_bias, anchor, positive, weight, *upstream
        )

    def run(self, device):
        rows, B = self.S.shape
        S, lse = self.S.copy(), np.full((2, rows), np.nan, self.dtype)
        dbias = np.linspace(-1, 1, 2 * B, dtype=self.dtype).reshape(2, B)
        upstream = [0, 0] if self.upstream is None else [row.ctypes.data for row in self.upstream]
        stride = 1 if self.upstream is not None and self.upstream.shape[1] == rows else 0
        chunk = getattr(device.module, f"AnchorChunk_{SUFFIX[self.dtype]}")(
            S=S.ctypes.data,
            rows=rows,
            B=B,
            alpha=self.alpha,
            positive_bias=self.positive_bias.ctypes.data,
            negative_bias=self.negative_bias.ctypes.data,
            anchor_bias=0 if self.anchor_bias is None else self.anchor_bias.ctypes.data,
            row_max=self.alpha > 70,
            upstream_positive=upstream[0],
            upstream_negative=upstream[1],
            upstream_positive_stride=stride,
            upstream_negative_stride=stride,
            lse_positive=lse[0].ctypes.data,
            lse_negative=lse[1].ctypes.data,
            dpositive_bias=dbias[0].ctypes.data if self.wants_biases else 0,
            dnegative_bias=dbias[1].ctypes.data if self.wants_biases else 0,
        )
        if self.sets == "labels":
            device.call("anchor_lse_labels", self.dtype, chunk, self.labels, B, first_label=self.first)
        else:
            device.call("anchor_lse_confidences", self.dtype, chunk, None, B, **self.confidence_arguments())
        dbias -= np.linspace(-1, 1, 2 * B, dtype=self.dtype).reshape(2, B)
        return S, lse, dbias

    transposed = False

    def confidence_arguments(self):
        values = np.asfortranarray(self.values) if self.transposed else self.values
        strides = [stride // values.itemsize for stride in values.strides]
        return {
            "values": values,
            "anchor_stride": strides[0],
            "candidate_stride": strides[1],
            "logits": self.sets == "logits",
            "beta": self.beta,
            "threshold": self.threshold,
        }


def check(problem, device):
    expected = problem.expected()
    S, (lse_positive, lse_negative), (dpositive, dnegative) = problem.run(device)
    eps = np.finfo(problem.dtype).eps
    # An exponent of size alpha carries an absolute error of eps * alpha, which is a relative one of its exponential;
    # a confidence's error is multiplied by beta. The CPU's float exponential is 0 below e^-86.6.
    rtol = eps * (4 * problem.alpha + (4 * problem.beta if problem.sets != "labels" else 0) + 50)
    tiny = 1e-30
    np.testing.assert_allclose(lse_positive, expected.lse_positive, rtol=rtol, atol=tiny)
    np.testing.assert_allclose(lse_negative, expected.lse_negative, rtol=rtol, atol=tiny)
    if problem.upstream is None:
        return
    np.testing.assert_allclose(S, expected.dsimilarity, rtol=rtol, atol=tiny)
    if not problem.wants_biases:
        return
    # Added to values of size 1, over rows whose contributions cancel.
    bound = rtol * len(S) + 4 * eps
    np.testing.assert_allclose(dpositive, expected.dpositive_bias, rtol=rtol, atol=bound)
    np.testing.assert_allclose(dnegative, expected.dnegative_bias, rtol=rtol, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sets", ["labels", "confidences", "logits"])
@pytest.mark.parametrize(("rows", "B"), SHAPES)
def test_shapes(device, rows, B, sets, dtype):
    check(Problem(rows, B, dtype, sets=sets, anchor=True), device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sets", ["labels", "confidences"])
@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 500.0},
        {"alpha": 500.0, "anchor": True},
        {"alpha": 2.0},
        {"upstream": "scalar"},
        {"upstream": None},
        {"biases": False},
    ],
    ids=str,
)
def test_options(device, options, sets, dtype):
    check(Problem(37, 129, dtype, sets=sets, **options), device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sets", ["confidences", "logits"])
def test_confidences_with_classes_side_by_side(device, sets, dtype):
    problem = Problem(37, 65, dtype, sets=sets)
    problem.transposed = True
    check(problem, device)


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_candidates(device, dtype):
    S, lse, dbias = Problem(5, 0, dtype).run(device)
    assert S.shape == (5, 0)
    assert dbias.shape == (2, 0)
    np.testing.assert_array_equal(lse, 0)


def test_nan_reaches_its_row_alone(device):
    """Up to the exponential everything may be shared; after it a NaN must be a NaN, and its neighbours untouched."""
    problem = Problem(6, 40, np.float32)
    clean = problem.run(device)[1]
    problem.S[3, 11] = np.nan
    problem.labels[11] = 0  # a negative of every row
    lse = problem.run(device)[1]
    assert np.isnan(lse[1, 3])
    np.testing.assert_array_equal(np.delete(lse[1], 3), np.delete(clean[1], 3))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sets", ["labels", "confidences"])
def test_threads(native, sets, threads):
    problem, device = Problem(101, 257, np.float32, sets=sets, anchor=True), Device("cpu", native, threads)
    check(problem, device)
    first, second = problem.run(device), problem.run(device)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sets", ["labels", "confidences"])
@pytest.mark.parametrize("B", [257, 600])
def test_kernels_do_not_depend_on_the_order_of_threads(emulated, sets, B, monkeypatch):
    problem, device = Problem(70, B, np.float32, sets=sets), Device("emulated", emulated)
    forward = problem.run(device)
    monkeypatch.setenv("ROBUSTDML_EMULATION_REVERSE", "1")
    for a, b in zip(forward, problem.run(device), strict=True):
        np.testing.assert_array_equal(a, b)
