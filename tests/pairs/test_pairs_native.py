"""The native functions on pairs called by address: the CPU's, and the CUDA kernels in emulation, against numpy.

No torch in here, so that the sanitized build runs these tests in seconds.
"""

import numpy as np
import pytest

SUFFIX = {np.float32: "f32", np.float64: "f64"}
# A single pair, sizes around the vector and warp widths, more than one block of a sum, more than a warp's row.
SHAPES = [(1, 1), (5, 33), (8, 257), (3, 2100)]
LSE = {"alpha": 2.0, "beta": 50.0, "base": 0.5, "epsilon": 0.0, "mining": False, "row_max": False}
HINGE = {"positive_margin": 0.7, "negative_margin": 0.1, "positive_offset": -0.25, "negative_offset": 0.5}
PROBLEMS = {
    "all": LSE,
    "mined": LSE | {"epsilon": 0.07, "mining": True},
    "mined with weights": LSE | {"epsilon": 0.07, "mining": True, "weights": True},
    "with weights": LSE | {"weights": True},
    "shifted": LSE | {"alpha": 300.0, "beta": 4000.0, "row_max": True},
    "mined and shifted": LSE | {"beta": 4000.0, "row_max": True, "epsilon": 0.07, "mining": True},
    "cosine": HINGE | {"euclidean": False},
    "euclidean": HINGE | {"positive_margin": -0.3, "negative_margin": -1.3, "euclidean": True},
}


class Pairs:
    """Random similarities and labels, −1 among the classes and some absent; outputs poisoned."""

    def __init__(self, name, rows, m, dtype, itself, upstream=True, raw=False):
        rng = np.random.default_rng([rows, m])
        self.settings, self.dtype, self.rows, self.m = dict(PROBLEMS[name]), dtype, rows, m
        self.weights = rng.random(m).astype(dtype) if self.settings.pop("weights", False) else None
        self.first = min(3, m - rows) if itself and m > rows else (0 if itself and m == rows else -1)
        self.S = np.clip(rng.normal(0, 0.3, (rows, m)), -1, 1).astype(dtype)
        self.candidate_labels, self.labels = rng.integers(-2, 4, m), rng.integers(-2, 4, rows)
        if self.first >= 0:
            self.labels = self.candidate_labels[self.first : self.first + rows]
        self.upstream = rng.normal(0, 1, (2, rows)).astype(dtype) if upstream else None
        self.inverse_norm = None
        if raw:
            self.inverse_norm = (0.1 + rng.random(rows)).astype(dtype)
            self.inverse_norm[0] = 0  # a zero row: cosine 0 with everything

    def expected(self):
        S = self.S.astype(np.float64)
        scale = np.ones((self.rows, 1)) if self.inverse_norm is None else self.inverse_norm[:, None].astype(np.float64)
        S = S * scale
        present = (self.labels[:, None] != -2) & (self.candidate_labels != -2)
        if self.first >= 0:
            present[np.arange(self.rows), self.first + np.arange(self.rows)] = False
        same = self.labels[:, None] == self.candidate_labels
        sums = lse if "alpha" in self.settings else hinge
        weights = None if self.weights is None else self.weights.astype(np.float64)
        upstream = np.zeros((2, self.rows)) if self.upstream is None else self.upstream.astype(np.float64)
        values, counts, dS = sums(S, present & same, present & ~same, weights, upstream, **self.settings)
        return values, counts, dS * scale

    def run(self, module, device):
        """The sums, counts and gradient as ``device`` makes them."""
        suffix = SUFFIX[self.dtype] if device == "cpu" else f"cuda_{SUFFIX[self.dtype]}"
        integer = np.int32 if device == "cpu" else np.int64
        S, absent = self.S.copy(), np.iinfo(integer).min
        labels, others = (np.where(y == -2, absent, y).astype(integer) for y in (self.labels, self.candidate_labels))
        sums, counts = np.full((2, self.rows), np.nan, self.dtype), np.full((2, self.rows), -9)
        address = lambda array: 0 if array is None else array.ctypes.data  # noqa: E731
        upstream = (None, None) if self.upstream is None else self.upstream
        anchors = {} if self.inverse_norm is None else {"inverse_norm": address(self.inverse_norm)}
        chunk = getattr(module, f"PairChunk_{suffix}")(
            S=address(S), rows=self.rows, m=self.m, labels=address(labels), candidate_labels=address(others),
            itself=self.first, upstream_positive=address(upstream[0]), upstream_negative=address(upstream[1]),
            upstream_positive_stride=1, upstream_negative_stride=1,
            positive=address(sums[0]), negative=address(sums[1]), **anchors,
        )  # fmt: skip
        if "alpha" in self.settings:
            problem = getattr(module, f"PairLSE_{SUFFIX[self.dtype]}")(
                **self.settings, candidate_weights=address(self.weights)
            )
            name = "pair_lse"
        else:
            problem = getattr(module, f"PairHinge_{SUFFIX[self.dtype]}")(
                **self.settings, positive_count=address(counts[0]), negative_count=address(counts[1])
            )
            name = "pair_hinge"
        getattr(module, f"{name}_{suffix}")(chunk, problem, 2 if device == "cpu" else 0)
        return sums, counts, S


def lse(S, positive, negative, weights, upstream, alpha, beta, base, epsilon, mining, row_max):
    if mining:
        lowest = np.where(positive, S, np.inf).min(1, keepdims=True)
        highest = np.where(negative, S, -np.inf).max(1, keepdims=True)
        positive, negative = positive & (S - epsilon < highest), negative & (S + epsilon > lowest)
    values, dS = [], np.zeros_like(S)
    for members, slope, factor in ((positive, -alpha, upstream[0]), (negative, beta, upstream[1])):
        z = np.where(members, slope * (S - base), -np.inf)
        value = np.logaddexp.reduce(np.pad(z, ((0, 0), (1, 0))), axis=1)
        mean = 1.0 if weights is None else (members * weights).sum(1) / np.maximum(members.sum(1), 1)
        dS += slope * np.exp(z - value[:, None]) * (factor * mean)[:, None]
        values.append(value * mean)
    return np.array(values), None, dS


def hinge(S, positive, negative, weights, upstream, euclidean, **margins):
    t = -np.sqrt(2 - 2 * S) if euclidean else S
    slope = np.divide(-1, t, where=t < 0, out=np.zeros_like(t)) if euclidean else 1.0
    attracts = positive & (t < margins["positive_margin"])
    repels = negative & (t > margins["negative_margin"])
    values = [
        ((margins["positive_margin"] + margins["positive_offset"] - t) * attracts).sum(1),
        ((t - margins["negative_margin"] + margins["negative_offset"]) * repels).sum(1),
    ]
    dS = (upstream[1][:, None] * repels - upstream[0][:, None] * attracts) * slope
    return np.array(values), np.array([attracts.sum(1), repels.sum(1)]), dS


@pytest.fixture(params=["cpu", "emulated"])
def device(request):
    return request.param, request.getfixturevalue("native" if request.param == "cpu" else "emulated")


def check(pairs, device):
    name, module = device
    sums, counts, dS = pairs.run(module, name)
    values, expected_counts, gradient = pairs.expected()
    # Of the exponent, whose rounding grows with its scale.
    tolerance = np.finfo(pairs.dtype).eps * 4 * (8 + pairs.settings.get("alpha", 0) + pairs.settings.get("beta", 0))
    np.testing.assert_allclose(sums, values, rtol=tolerance, atol=tolerance)
    if expected_counts is not None:
        np.testing.assert_array_equal(counts, expected_counts)
    if pairs.upstream is not None:
        np.testing.assert_allclose(dS, gradient, rtol=tolerance, atol=tolerance * (1 + np.abs(gradient).max()))


@pytest.mark.parametrize("dtype", SUFFIX)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("itself", [False, True])
def test_sums_and_gradient(name, dtype, itself, device):
    for rows, m in SHAPES:
        check(Pairs(name, rows, m, dtype, itself), device)
    check(Pairs(name, 5, 33, dtype, itself, upstream=False), device)


@pytest.mark.parametrize("dtype", SUFFIX)
@pytest.mark.parametrize("name", PROBLEMS)
def test_anchors_of_any_length(name, dtype, native):
    """On the CPU the products run on the anchors as they are, and the epilogue takes their norms."""
    check(Pairs(name, 8, 257, dtype, True, raw=True), ("cpu", native))


@pytest.mark.parametrize("name", PROBLEMS)
def test_same_bits_twice(name, device):
    kind, module = device
    first, second = (Pairs(name, 8, 257, np.float32, True).run(module, kind) for _ in range(2))
    for mine, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_nan_reaches_the_result_on_a_gpu(name, emulated):
    """There nobody looks at the values; mining must not pass over them in silence."""
    pairs = Pairs(name, 2, 40, np.float32, False)
    pairs.labels[:], pairs.candidate_labels[:] = 1, np.arange(40) % 3
    pairs.S[0, 4], pairs.S[1, 5] = np.nan, np.nan  # a positive and a negative
    sums, *_ = pairs.run(emulated, "emulated")
    assert np.isnan(sums[0, 0])
    assert np.isnan(sums[1, 1])


@pytest.mark.parametrize("dtype", SUFFIX)
@pytest.mark.parametrize("m", [33, 600, 2100])
def test_near_rows_keep_their_distance(m, dtype, device):
    """Copies of the anchors, of other lengths, and near ones among the candidates."""
    name, module = device
    rng, rows, D = np.random.default_rng(m), 5, 37
    P = rng.normal(0, 1, (rows, D)).astype(dtype)
    Q = (P[np.arange(m) % rows] * 2.0 ** (np.arange(m) % 4)[:, None]).astype(dtype)
    Q[:: 2 * rows + 1] *= (1 + rng.normal(0, 1e-4, D)).astype(dtype)
    unit = [rows_ / np.linalg.norm(rows_, axis=1, keepdims=True) for rows_ in (P.astype(float), Q.astype(float))]
    pairs = Pairs("euclidean", rows, m, dtype, False)
    pairs.S = (unit[0] @ unit[1].T).astype(dtype)
    element = {np.float32: 2, np.float64: 3}[dtype]
    pairs.settings |= {
        "positive_margin": 0.0, "negative_margin": -3.0, "positive_offset": 0.0, "negative_offset": 0.0,
        "near": 2.0**-5, "resolution": 2.0**-21, "anchors": P.ctypes.data, "candidates": Q.ctypes.data, "D": D,
        "anchors_element": element, "candidates_element": element,
    }  # fmt: skip
    sums, counts, dS = pairs.run(module, name)
    distance = np.sqrt(((unit[0][:, None] - unit[1]) ** 2).sum(-1))
    distance[distance < 1e-14] = 0
    present = (pairs.labels[:, None] != -2) & (pairs.candidate_labels != -2)
    same = pairs.labels[:, None] == pairs.candidate_labels
    attracts, repels = present & same & (distance > 0), present & ~same
    assert (present & same & (distance == 0)).any()
    np.testing.assert_array_equal(counts, [attracts.sum(1), repels.sum(1)])
    tolerance = 1e-4 if dtype == np.float32 else 1e-11
    expected = [(distance * attracts).sum(1), ((3 - distance) * repels).sum(1)]
    np.testing.assert_allclose(sums, expected, rtol=tolerance, atol=tolerance)
    factors = pairs.upstream[1][:, None] * repels - pairs.upstream[0][:, None] * attracts
    apart = distance > 2.0**-21
    gradient = np.divide(factors, distance, where=apart, out=np.zeros_like(distance))
    np.testing.assert_allclose(dS, gradient, rtol=tolerance, atol=tolerance)
