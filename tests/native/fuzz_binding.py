"""Calls the native module's functions with random shapes, layouts, labels and numbers of threads, by address.

    python fuzz_binding.py MODULE --seed 0 --calls 500 --at-once 1

Each array is exactly as long as the call may read or write, optional ones are there or null, matrices lie by rows or by
columns with room between them, and start at any element. Outputs are NaN before the call and must not be after it. It
is made to run under sanitizers, which see what is read or written beyond: no torch in here. The products of whole
sweeps are NumPy's OpenBLAS.
"""

import argparse
import ctypes
import math
import sys
import threading
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SUFFIX = {np.float32: "f32", np.float64: "f64"}
ABSENT = np.iinfo(np.int32).min


def address(array):
    """Of an array; 0, null, for None."""
    return 0 if array is None else array.ctypes.data


class Draw:
    """Random sizes and arrays of one call."""

    def __init__(self, rng):
        self.rng = rng
        self.dtype = [np.float32, np.float64][rng.integers(2)]
        self.threads = int(rng.integers(1, 9))
        self.kept, self.outputs = [], []

    def size(self, least=0, most=70):
        return int(self.rng.choice([least, 1, 2, 15, 16, 17, 33, self.rng.integers(least, most + 1)]))

    def flag(self):
        return bool(self.rng.integers(2))

    def of(self, values, dtype=None):
        """In memory of exactly its length, perhaps from the second element on."""
        values = np.asarray(values, dtype or self.dtype)
        ahead = int(self.rng.integers(2))
        room = np.empty(values.size + ahead, values.dtype)
        room[:ahead] = 0
        array = room[ahead:].reshape(values.shape)
        array[...] = values
        self.kept.append(array)
        return array

    def normal(self, *shape):
        return self.of(self.rng.normal(0, 1, shape))

    def out(self, *shape, dtype=None):
        array = self.of(np.full(shape, np.nan) if dtype is None else np.full(shape, -7), dtype)
        self.outputs.append(array)
        return array

    def matrix(self, rows, columns, values=None, by_columns=None):
        """(address, row stride, column stride) and the numbers: no longer than its last element."""
        by_columns = self.flag() if by_columns is None else by_columns
        long, short = (columns, rows) if by_columns else (rows, columns)
        stride = short + int(self.rng.choice([0, 0, 1, 5]))
        flat = self.of(np.zeros(max(0, (long - 1) * stride + short) if long and short else 0))
        view = np.lib.stride_tricks.as_strided(
            flat, (rows, columns), tuple(flat.itemsize * s for s in ((1, stride) if by_columns else (stride, 1)))
        )
        view[...] = self.rng.normal(0, 1, (rows, columns)) if values is None else values
        return (address(flat), *((1, stride) if by_columns else (stride, 1))), view, by_columns

    def labels(self, rows, classes, dtype=np.int64):
        """Also of classes that are not among those of the chunk."""
        return self.of(self.rng.integers(-2, classes + 2, rows), dtype)

    def upstream(self, rows):
        """Two factors for all rows, or one each, or none: addresses and stride."""
        kind = self.rng.integers(3)
        if kind == 0:
            return {}, 0
        each = [self.normal(rows if kind == 1 else 1) for _ in range(2)]
        return {"upstream_positive": address(each[0]), "upstream_negative": address(each[1])}, int(kind == 1)


def function(module, name, draw):
    return getattr(module, f"{name}_{SUFFIX[draw.dtype]}")


def rows(module, draw):
    n, D = draw.size(), draw.size(1)
    P, values, by_columns = draw.matrix(n, D)
    if n:
        values[int(draw.rng.integers(n))] *= draw.rng.choice([0.0, 1e-30, 1e30, 1.0])
    U, units, _ = draw.matrix(n, D, np.nan, by_columns)
    G, gradient, _ = draw.matrix(n, D, None, by_columns)
    norms = draw.out(n)
    if draw.flag():
        function(module, "inverse_norms", draw)(P, address(norms), n, D, draw.threads)
        function(module, "project_rows", draw)(G, P, address(norms), n, D, draw.threads)
    else:
        function(module, "normalize_rows", draw)(P, U, address(norms), n, D, draw.threads)
        function(module, "normalize_rows_backward", draw)(G, U, address(norms), n, D, draw.threads)
        draw.outputs.append(units)
    draw.outputs.append(gradient)


def _anchor_chunk(module, draw, n, B, S, inverse_norm, biases_wanted, upstream, stride):
    return function(module, "AnchorChunk", draw)(
        S=address(S),
        rows=n,
        B=B,
        alpha=float(draw.rng.choice([0.5, 32, 2000])),
        positive_bias=address(_with_absent(draw, B)),
        negative_bias=address(_with_absent(draw, B)),
        anchor_bias=address(draw.normal(n)) if draw.flag() else 0,
        row_max=True,
        **({"upstream_positive": 0, "upstream_negative": 0} | upstream),
        upstream_positive_stride=stride,
        upstream_negative_stride=stride,
        lse_positive=address(draw.out(n)),
        lse_negative=address(draw.out(n)),
        dpositive_bias=address(draw.normal(B)) if biases_wanted else 0,
        dnegative_bias=address(draw.normal(B)) if biases_wanted else 0,
        inverse_norm=address(inverse_norm),
    )


def _with_absent(draw, B):
    bias = draw.normal(B)
    bias[draw.rng.random(B) < 0.2] = -np.inf
    return bias


def _sorted(draw, labels):
    order = draw.of(np.argsort(labels, kind="stable"), np.int64)
    return {"sorted_labels": address(draw.of(labels[order], np.int64)), "order": address(order)}


def _confidences(draw, n, B):
    (values, *_), view, _ = draw.matrix(n, B)
    logits = draw.flag()
    if not logits:
        view[...] = draw.rng.random((n, B))
    strides = [s // view.itemsize for s in view.strides]
    return {
        "values": values, "anchor_stride": strides[0], "candidate_stride": strides[1], "logits": logits,
        "beta": float(draw.rng.choice([0, 1, 100])), "threshold": 0.3,
    }  # fmt: skip


def anchor(module, draw):
    n, B = draw.size(), draw.size(1)
    S = draw.of(draw.rng.uniform(-1, 1, (n, B)))
    upstream, stride = draw.upstream(n)
    wanted = bool(upstream) and draw.flag()
    chunk = _anchor_chunk(module, draw, n, B, S, draw.of(np.ones(n)) if draw.flag() else None, wanted, upstream, stride)
    if upstream:
        draw.outputs.append(S)
    if draw.flag():
        sets = _sorted(draw, draw.labels(B, n)) | {"first_label": 0}
        function(module, "anchor_lse_labels", draw)(chunk, **sets, threads=draw.threads)
    else:
        function(module, "anchor_lse_confidences", draw)(chunk, **_confidences(draw, n, B), threads=draw.threads)


def _class_chunk(module, draw, C, H, B, S, inverse_norm):
    bias = draw.normal(C)
    bias[draw.rng.random(C) < 0.2] = -np.inf
    one = draw.flag()
    return function(module, "ClassChunk", draw)(
        S=address(S),
        classes=C,
        centers=H,
        B=B,
        scale=address(draw.normal(1 if one else C)),
        scale_stride=0 if one else 1,
        bias=address(bias) if draw.flag() else 0,
        pooling=str(draw.rng.choice(["max", "softmax"])) if H > 1 else "none",
        gamma=0.3,
        inverse_norm=address(inverse_norm),
    )


def _class_sums(draw, B):
    return {
        "shift": address(draw.of(np.full(B, -np.inf), np.float64)),
        "total": address(draw.of(np.zeros(B), np.float64)),
        "target": address(draw.normal(B)),
    }


def _class_upstream(draw, B):
    return {
        "lse": address(draw.of(4 + draw.rng.random(B))),
        "dlse": address(draw.normal(B)),
        "dlogit": address(draw.normal(B)),
    }


def classes(module, draw):
    C, H, B = draw.size(1), int(draw.rng.integers(1, 5)), draw.size(1)
    S = draw.of(draw.rng.uniform(-1, 1, (C, H, B)))
    norms = draw.of(np.ones(C * H)) if draw.flag() else None
    chunk = _class_chunk(module, draw, C, H, B, S, norms)
    sets = _sorted(draw, draw.labels(B, C)) | {"first_label": 0, "threads": draw.threads}
    if draw.flag():
        function(module, "class_lse", draw)(chunk, **sets, **_class_sums(draw, B))
    else:
        function(module, "class_lse_backward", draw)(chunk, **sets, **_class_upstream(draw, B))
        draw.outputs.append(S)


def _pair_labels(draw, rows):
    labels = draw.labels(rows, 4, np.int32)
    labels[draw.rng.random(rows) < 0.1] = ABSENT
    return labels


def _pair_lse(module, draw, m):
    weights = draw.of(draw.rng.random(m)) if draw.flag() else None
    return function(module, "PairLSE", draw)(
        alpha=float(draw.rng.choice([2, 500])), beta=float(draw.rng.choice([50, 500])), base=0.5, epsilon=0.1,
        mining=draw.flag(), row_max=True, candidate_weights=address(weights),
    )  # fmt: skip


def _pair_hinge(module, draw, n, anchors, candidates):
    counts = [draw.out(n, dtype=np.int64) for _ in range(2)]
    return function(module, "PairHinge", draw)(
        positive_margin=0.3, negative_margin=-0.2, positive_offset=0.1, negative_offset=-0.1, euclidean=draw.flag(),
        positive_count=address(counts[0]), negative_count=address(counts[1]), near=0.5, resolution=1e-6,
        anchors=address(anchors), candidates=address(candidates), D=anchors.shape[1],
    )  # fmt: skip


def _pair_chunk(module, draw, n, m, S, labels, others, itself, upstream, stride, norms):
    return function(module, "PairChunk", draw)(
        S=address(S),
        rows=n,
        m=m,
        labels=address(labels),
        candidate_labels=address(others),
        itself=itself,
        **({"upstream_positive": 0, "upstream_negative": 0} | upstream),
        upstream_positive_stride=stride,
        upstream_negative_stride=stride,
        positive=address(draw.out(n)),
        negative=address(draw.out(n)),
        inverse_norm=address(norms),
    )


def pairs(module, draw):
    n, m = draw.size(), draw.size(1)
    S = draw.of(draw.rng.uniform(-1, 1, (n, m)))
    itself = int(draw.rng.integers(m - n + 1)) if draw.flag() and m >= n else -1
    upstream, stride = draw.upstream(n)
    others = _pair_labels(draw, m)
    labels = _pair_labels(draw, n) if itself < 0 else draw.of(others[itself : itself + n], np.int32)
    norms = draw.of(np.ones(n)) if draw.flag() else None
    chunk = _pair_chunk(module, draw, n, m, S, labels, others, itself, upstream, stride, norms)
    if draw.flag():
        function(module, "pair_lse", draw)(chunk, _pair_lse(module, draw, m), draw.threads)
    else:
        D = draw.size(1)
        problem = _pair_hinge(module, draw, n, draw.normal(n, D), draw.normal(m, D))
        function(module, "pair_hinge", draw)(chunk, problem, draw.threads)
    if upstream:
        draw.outputs.append(S)


def _gemm(dtype):
    """OpenBLAS's product with integers of 64 bits, of NumPy's wheel; 0 where it is another."""
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    for path in folder.glob("libscipy_openblas64*"):
        name = "scipy_sgemm_64_" if dtype is np.float32 else "scipy_dgemm_64_"
        return ctypes.cast(getattr(ctypes.CDLL(str(path)), name), ctypes.c_void_p).value
    return 0


def _sweep(draw, B, rows_, D, together=1, subset=False):
    """Fields of a sweep over all rows of P or, with ``subset``, perhaps over some; P's numbers and how they lie."""
    whole = rows_ + (draw.size() if subset and draw.flag() else 0)
    P, view, by_columns = draw.matrix(whole, D)
    met = draw.of(draw.rng.permutation(whole)[:rows_], np.int64) if whole > rows_ else None
    chunk = together * int(draw.rng.integers(1, max(2, rows_ // together + 1)))
    wants = draw.flag(), draw.flag()
    dX = draw.out(B, D) if wants[0] else None
    dP, dview, _ = draw.matrix(rows_, D, np.nan, by_columns)
    if wants[1]:
        draw.outputs.append(dview)
    fields = {
        "gemm": _gemm(draw.dtype), "set_threads": 0, "X": address(draw.normal(B, D)), "B": B, "D": D,
        "P": P[0], "P_row_stride": P[1], "P_column_stride": P[2], "rows": rows_, "met": address(met),
        "normalize": draw.flag(), "dX": address(dX), "dP": dP[0] if wants[1] else 0, "dP_row_stride": dP[1],
        "dP_column_stride": dP[2], "chunk_rows": min(rows_, chunk), "threads": draw.threads,
    }  # fmt: skip
    return fields, view, by_columns


def _update(module, draw, fields, view, by_columns):
    """A step of an optimiser on the proxies, where the loss wants no gradient of them."""
    if not draw.flag() or fields["dP"]:
        return {}
    kind = str(draw.rng.choice(["adamw", "sgd", "adagrad"]))
    half = draw.flag() and kind != "adagrad"
    stride, (whole, D) = max(fields["P_row_stride"], fields["P_column_stride"]), view.shape
    span = ((D if by_columns else whole) - 1) * stride + (whole if by_columns else D)
    moments = [draw.of(np.zeros(span), np.uint16 if half else draw.dtype) for _ in range(2)]
    if kind == "adagrad":
        moments[0] = draw.of(np.ones(whole))
    chunks = -(-fields["rows"] // fields["chunk_rows"])
    update = function(module, "ProxyUpdate", draw)(
        kind=kind, P=fields["P"], M1=address(moments[0]), M2=address(moments[1]) if kind == "adamw" else 0,
        bfloat16=half, key=int(draw.rng.integers(2**63)), lr=0.1, weight_decay=0.01, eps=1e-6, beta1=0.9, beta2=0.99,
        step_size=0.1, inverse_root=1.0, momentum=0.9, nesterov=draw.flag(), first_step=draw.flag(),
        skipped=address(draw.of(np.zeros(chunks), np.bool_)),
    )  # fmt: skip
    draw.kept.append(update)
    draw.outputs.append(view)
    return {"update": update}


def anchor_sweep(module, draw):
    n, B, D = draw.size(1), draw.size(1), draw.size(1)
    fields, view, by_columns = _sweep(draw, B, n, D, subset=True)
    each = [draw.normal(n) for _ in range(2)]
    upstream = {"upstream_positive": address(each[0]), "upstream_negative": address(each[1])}
    fields |= _update(module, draw, fields, view, by_columns)
    whole = _anchor_chunk(module, draw, n, B, None, None, draw.flag(), upstream, 1)
    total = draw.of([0.0], np.float64)
    draw.outputs.append(total)
    if draw.flag():
        sets = _sorted(draw, draw.labels(B, n)) | {"first_label": 0}
        function(module, "anchor_sweep_labels", draw)(whole, **sets, **fields, total=address(total))
        return
    K, factored = draw.size(1, 20), draw.flag()
    # Logits are made for each chunk, and lie by rows.
    made = {"logits": True, "values": 0, "anchor_stride": B, "candidate_stride": 1}
    sets = _confidences(draw, n, B) | (made if factored else {})
    hidden, weight, bias = (draw.normal(*shape) for shape in ((B, K), (n, K), (n,)))
    factors = {"hidden": address(hidden) if factored else 0, "weight": address(weight), "bias": address(bias), "K": K}
    function(module, "anchor_sweep_confidences", draw)(whole, **sets, **factors, **fields, total=address(total))


def class_sweep(module, draw):
    C, H, B, D = draw.size(1, 40), int(draw.rng.integers(1, 4)), draw.size(1), draw.size(1)
    fields, view, by_columns = _sweep(draw, B, C * H, D, together=H, subset=True)
    chunk = _class_chunk(module, draw, C, H, B, None, None)
    sets = _sorted(draw, draw.labels(B, C)) | {"first_label": 0}
    if draw.flag():
        draw.outputs = []
        fields |= {"dX": 0, "dP": 0}
        function(module, "class_sweep", draw)(chunk, **sets, **fields, **_class_sums(draw, B))
        return
    fields |= _update(module, draw, fields, view, by_columns)
    function(module, "class_sweep_backward", draw)(chunk, **sets, **fields, **_class_upstream(draw, B))


def pair_sweep(module, draw):
    """Log-sum-exps have the anchors for rows, hinges the candidates."""
    n, m, D = draw.size(1), draw.size(1), draw.size(1)
    upstream, stride = draw.upstream(n)
    own, others = _pair_labels(draw, n), _pair_labels(draw, m)
    whole = _pair_chunk(module, draw, n, m, None, own, others, -1, upstream, stride, None)
    lse = draw.flag()
    fields, view, _ = _sweep(draw, *((m, n) if lse else (n, m)), D)
    if not upstream:
        draw.outputs = draw.outputs[:2]
        fields |= {"dX": 0, "dP": 0}
    sweep = function(module, "Sweep", draw)(**fields)
    if lse:
        function(module, "pair_lse_sweep", draw)(whole, _pair_lse(module, draw, m), sweep)
    else:
        problem = _pair_hinge(module, draw, n, draw.normal(n, D), draw.of(view))
        scale = draw.out(m) if fields["normalize"] else draw.normal(m)
        function(module, "pair_hinge_sweep", draw)(whole, problem, sweep, address(scale))


def pair_symmetric(module, draw):
    n, D = draw.size(1), draw.size(1)
    upstream, stride = draw.upstream(n)
    S, X = draw.of(np.zeros((n, n))), draw.normal(n, D)
    labels = _pair_labels(draw, n)
    whole = _pair_chunk(module, draw, n, n, S, labels, labels, 0, upstream, stride, None)
    lse = draw.flag()
    problem = _pair_lse(module, draw, n) if lse else _pair_hinge(module, draw, n, X, X)
    batch = function(module, "Batch", draw)(
        gemm=_gemm(draw.dtype), set_threads=0, U=address(draw.of(X / np.linalg.norm(X, axis=1, keepdims=True))), n=n,
        D=D, S=address(S), dU=address(draw.out(n, D)) if upstream else 0, average=not lse and draw.flag(),
        threads=draw.threads,
    )  # fmt: skip
    function(module, f"pair_{'lse' if lse else 'hinge'}_symmetric", draw)(whole, problem, batch)


def otsu(module, draw):
    n_rows, n = draw.size(), draw.size(1, 300)
    values = draw.normal(n_rows, n)
    if draw.flag():
        values[draw.rng.random((n_rows, n)) < 0.2] = draw.rng.choice([np.nan, np.inf, -np.inf, 0.0])
    if draw.flag():
        reals = [address(draw.out(n_rows)) for _ in range(3)]
        integers = [address(draw.out(n_rows, dtype=np.int64)) for _ in range(2)]
        found = draw.of(np.zeros(n_rows), np.bool_)
        function(module, "otsu", draw)(
            address(values), n_rows, n, int(draw.rng.integers(1, 5)), *reals, *integers, address(found), draw.threads
        )
    elif n_rows:
        sigma, threshold = draw.of(np.zeros(n)), draw.out(1)
        function(module, "otsu_confidence", draw)(
            address(draw.of(values[0])), n, 2, 0.5, address(threshold), address(sigma), draw.threads
        )


def lambert(module, draw):
    n = draw.size(0, 300)
    x, tau = draw.of(np.abs(draw.rng.normal(0, 3, n))), draw.normal(n if draw.flag() else 1)
    stride = int(len(tau) == n and n > 1)
    which = draw.rng.integers(3)
    if which == 0:
        function(module, "lambert_w", draw)(address(x), address(draw.out(n)), n, draw.threads)
    elif which == 1:
        out = draw.out(n)
        function(module, "confidence", draw)(address(x), address(tau), stride, 0.7, address(out), n, draw.threads)
    else:
        out = [address(draw.out(n)) for _ in range(2)]
        function(module, "superloss", draw)(address(x), address(tau), stride, 0.7, *out, n, draw.threads)


def _order(module, suffix, v, radius, debye, series):
    base = max(v, 1.0)
    scale = math.lgamma(v + 1)
    constant = scale - (v * math.log(base) - v + math.log(2 * math.pi * base) / 2)
    return getattr(module, f"VmfOrder_{suffix}")(
        v=v, base=base, constant=constant, log_scale=scale + v * math.log(2),
        series_below=max(4.0, math.sqrt(max(0.0, radius**2 - v**2))), debye_terms=debye, series_terms=series,
    )  # fmt: skip


ORDERS = {
    np.float64: [(0.0, 32, 10, 48), (9.5, 32, 10, 48), (63.0, 0, 10, 8), (255.0, 0, 6, 8)],
    np.float32: [(0.0, 14, 5, 24), (9.5, 14, 5, 24), (31.0, 0, 5, 8), (63.0, 0, 3, 8)],
}


def vmf(module, draw):
    n = draw.size(0, 300)
    lengths = ORDERS[draw.dtype][draw.rng.integers(4)]
    if draw.flag():
        kappa = draw.of(10.0 ** draw.rng.uniform(-4, 4, n))
        name = str(draw.rng.choice(["log_0f1", "peak", "ratio", "ratio_derivative"]))
        order = _order(module, SUFFIX[draw.dtype], *lengths)
        function(module, f"vmf_{name}", draw)(order, address(kappa), address(draw.out(n)), n, draw.threads)
        return
    C, D = draw.size(1), draw.size(2)
    counts = draw.rng.integers(0, 9, C)
    some = draw.flag()
    chosen = draw.of(draw.rng.integers(0, C, n), np.int64) if some else None
    n = n if some else C
    whole = draw.flag()
    problem = function(module, "VmfClasses", draw)(
        sums=address(draw.normal(C, D)), D=D, counts=address(draw.of(counts, np.int64)) if whole else 0,
        fractions=0 if whole else address(draw.of(counts, np.float64)), classes=address(chosen), n=n, dim=float(D),
        largest=1 - 1e-7, estimator=int(draw.rng.integers(3)), correction=int(draw.rng.integers(3)),
        kappa=address(draw.out(n)), log_peak=address(draw.out(n)), norm=address(draw.out(n, dtype=np.float64)),
    )  # fmt: skip
    orders = _order(module, "f64", *ORDERS[np.float64][1]), _order(module, SUFFIX[draw.dtype], *lengths)
    function(module, "vmf_fit", draw)(problem, *orders, draw.threads)


def nearest(module, draw):
    n, m, k = draw.size(), draw.size(1), int(draw.rng.integers(1, 9))
    (S, stride, _), _, _ = draw.matrix(n, m, None, by_columns=False)
    excluded = draw.of(draw.rng.integers(-1, m, n), np.int64) if draw.flag() else None
    values = draw.of(np.full((n, k), -np.inf))
    draw.outputs.append(values)
    indices = draw.of(np.full((n, k), -1), np.int64)
    function(module, "nearest_update", draw)(
        S,
        stride,
        n,
        m,
        int(draw.rng.integers(3)) * 100,
        address(excluded),
        k,
        address(values),
        address(indices),
        draw.threads,
    )


def self_paced(module, draw):
    C = int(draw.rng.integers(1, 8))
    sizes = draw.rng.integers(1, 7, C)
    N = int(sizes.sum())
    weights = draw.of(draw.rng.random(N))
    draw.outputs.append(weights)
    function(module, "self_paced_sweep", draw)(
        weights=address(weights), positive=address(draw.normal(N)), negative=address(draw.normal(N)),
        classes=address(draw.of(np.repeat(np.arange(C), sizes), np.int64)),
        starts=address(draw.of(np.concatenate([[0], np.cumsum(sizes)]), np.int64)),
        rates=address(draw.of(0.1 / sizes, np.float64)), N=N, C=C, lam=1.0, mu=0.5, decay=0.1,
        classes_per_step=int(draw.rng.integers(1, 12)), samples_per_class=int(draw.rng.integers(1, 9)),
        seed=int(draw.rng.integers(2**63)), steps=int(draw.rng.integers(0, 60)),
    )  # fmt: skip


CALLS = (
    rows, anchor, classes, pairs, otsu, lambert, vmf, nearest, self_paced, anchor_sweep, class_sweep, pair_sweep,
    pair_symmetric,
)  # fmt: skip


def one_call(module, seed, number):
    """The call of this number; AssertionError where an output was not written."""
    draw = Draw(np.random.default_rng([seed, number]))
    make = CALLS[number % len(CALLS)]
    if make in CALLS[-4:] and not _gemm(draw.dtype):
        return
    make(module, draw)
    for place, out in enumerate(draw.outputs):
        missed = np.isnan(out) if out.dtype.kind == "f" else out == -7
        assert not missed.any(), f"call {number} of seed {seed}, {make.__name__}: output {place} was not written"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("module", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=1, help="threads of Python that call at the same time")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    import native_builds

    module, failed = native_builds.load(arguments.module), []

    def work(first):
        try:
            for number in range(first, arguments.calls, arguments.at_once):
                one_call(module, arguments.seed, number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(arguments.at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    sweeps = "" if _gemm(np.float32) else ", none of whole sweeps: NumPy's OpenBLAS is not where its wheels have it"
    print(f"{arguments.calls} calls{sweeps}")


if __name__ == "__main__":
    main()
