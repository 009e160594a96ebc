"""Calls of the native functions that sweep over all rows, with NumPy's OpenBLAS for their products."""

import ctypes
from pathlib import Path

import numpy as np
from binding_chunks import (
    anchor_chunk,
    class_chunk,
    class_sums,
    class_upstream,
    confidences,
    pair_chunk,
    pair_hinge,
    pair_labels,
    pair_lse,
    sorted_labels,
)
from binding_draws import address, function


def gemm(dtype):
    """OpenBLAS's product with integers of 64 bits, of NumPy's wheel; 0 where it is another."""
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    for path in folder.glob("libscipy_openblas64*"):
        name = "scipy_sgemm_64_" if dtype is np.float32 else "scipy_dgemm_64_"
        return ctypes.cast(getattr(ctypes.CDLL(str(path)), name), ctypes.c_void_p).value
    return 0


def _sweep(draw, B, rows_, D, together=1, subset=False):
    """Fields of a sweep over all rows of P or, with ``subset``, perhaps over some; P's numbers and how they lie."""
    whole = rows_ + (draw.size() if subset and draw.flag() else 0)
    half = subset and draw.flag()
    bits = (draw.rng.normal(0, 1, (whole, D)).astype(np.float32).view(np.uint32) >> 16) if half else None
    P, view, by_columns = draw.matrix(whole, D, bits, dtype=np.uint16 if half else None)
    met = draw.of(draw.rng.permutation(whole)[:rows_], np.int64) if whole > rows_ else None
    chunk = together * int(draw.rng.integers(1, max(2, rows_ // together + 1)))
    wants = draw.flag(), draw.flag() and not half
    dX = draw.out(B, D) if wants[0] else None
    dP, dview, _ = draw.matrix(rows_, D, np.nan, by_columns)
    if wants[1]:
        draw.outputs.append(dview)
    fields = {
        "gemm": gemm(draw.dtype), "set_threads": 0, "X": address(draw.normal(B, D)), "B": B, "D": D,
        "P": P[0], "bfloat16": half, "P_row_stride": P[1], "P_column_stride": P[2], "rows": rows_, "met": address(met),
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
        bfloat16=half, bfloat16_proxies=fields["bfloat16"], key=int(draw.rng.integers(2**63)), lr=0.1,
        weight_decay=0.01, eps=1e-6, beta1=0.9, beta2=0.99, step_size=0.1,
        inverse_root=1.0, momentum=0.9, nesterov=draw.flag(), first_step=draw.flag(),
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
    labels_each = int(draw.rng.integers(1, 4))
    whole = anchor_chunk(module, draw, n, B, None, None, draw.flag(), upstream, 1, labels_each)
    total = draw.of([0.0], np.float64)
    draw.outputs.append(total)
    if draw.flag():
        # Distinct in a row.
        labels = (draw.labels(B, n)[:, None] + np.arange(labels_each)) % max(n, labels_each)
        sets = sorted_labels(draw, labels.flatten()) | {"first_label": 0}
        function(module, "anchor_sweep_labels", draw)(whole, **sets, **fields, total=address(total))
        return
    K, factored = draw.size(1, 20), draw.flag()
    # Logits are made for each chunk, and lie by rows.
    made = {"logits": True, "values": 0, "anchor_stride": B, "candidate_stride": 1}
    sets = confidences(draw, n, B) | (made if factored else {})
    hidden, weight, bias = (draw.normal(*shape) for shape in ((B, K), (n, K), (n,)))
    factors = {"hidden": address(hidden) if factored else 0, "weight": address(weight), "bias": address(bias), "K": K}
    function(module, "anchor_sweep_confidences", draw)(whole, **sets, **factors, **fields, total=address(total))


def class_sweep(module, draw):
    C, H, B, D = draw.size(1, 40), int(draw.rng.integers(1, 4)), draw.size(1), draw.size(1)
    fields, view, by_columns = _sweep(draw, B, C * H, D, together=H, subset=True)
    chunk = class_chunk(module, draw, C, H, B, None, None)
    sets = sorted_labels(draw, draw.labels(B, C)) | {"first_label": 0}
    if draw.flag():
        draw.outputs = []
        fields |= {"dX": 0, "dP": 0}
        function(module, "class_sweep", draw)(chunk, **sets, **fields, **class_sums(draw, B))
        return
    fields |= _update(module, draw, fields, view, by_columns)
    function(module, "class_sweep_backward", draw)(chunk, **sets, **fields, **class_upstream(draw, B))


def pair_sweep(module, draw):
    """Log-sum-exps have the anchors for rows, hinges the candidates."""
    n, m, D = draw.size(1), draw.size(1), draw.size(1)
    upstream, stride = draw.upstream(n)
    own, others = pair_labels(draw, n), pair_labels(draw, m)
    whole = pair_chunk(module, draw, n, m, None, own, others, -1, upstream, stride, None)
    lse = draw.flag()
    fields, view, _ = _sweep(draw, *((m, n) if lse else (n, m)), D)
    if not upstream:
        draw.outputs = draw.outputs[:2]
        fields |= {"dX": 0, "dP": 0}
    sweep = function(module, "Sweep", draw)(**fields)
    if lse:
        function(module, "pair_lse_sweep", draw)(whole, pair_lse(module, draw, m), sweep)
    else:
        problem = pair_hinge(module, draw, n, draw.normal(n, D), draw.of(view))
        scale = draw.out(m) if fields["normalize"] else draw.normal(m)
        function(module, "pair_hinge_sweep", draw)(whole, problem, sweep, address(scale))


def pair_symmetric(module, draw):
    n, D = draw.size(1), draw.size(1)
    upstream, stride = draw.upstream(n)
    S, X = draw.of(np.zeros((n, n))), draw.normal(n, D)
    labels = pair_labels(draw, n)
    whole = pair_chunk(module, draw, n, n, S, labels, labels, 0, upstream, stride, None)
    lse = draw.flag()
    problem = pair_lse(module, draw, n) if lse else pair_hinge(module, draw, n, X, X)
    batch = function(module, "Batch", draw)(
        gemm=gemm(draw.dtype), set_threads=0, U=address(draw.of(X / np.linalg.norm(X, axis=1, keepdims=True))), n=n,
        D=D, S=address(S), dU=address(draw.out(n, D)) if upstream else 0, average=not lse and draw.flag(),
        threads=draw.threads,
    )  # fmt: skip
    function(module, f"pair_{'lse' if lse else 'hinge'}_symmetric", draw)(whole, problem, batch)


def similarity(module, draw):
    """All cosines, or the nearest: no gradients."""
    n, B, D, k = draw.size(1), draw.size(1), draw.size(1), int(draw.rng.integers(1, 9))
    fields, *_ = _sweep(draw, B, n, D, subset=True)
    draw.outputs = []
    sweep = function(module, "Sweep", draw)(**fields | {"dX": 0, "dP": 0})
    if draw.flag():
        (S, stride, _), view, _ = draw.matrix(B, n, np.nan, by_columns=False)
        draw.outputs.append(view)
        function(module, "similarity_sweep", draw)(sweep, S=S, row_stride=stride)
        return
    excluded = draw.of(draw.rng.integers(-1, B, n), np.int64) if draw.flag() else None
    values, indices = draw.of(np.full((n, k), -np.inf)), draw.of(np.full((n, k), -1), np.int64)
    draw.outputs.append(values)
    function(module, "nearest_sweep", draw)(
        sweep, first_column=int(draw.rng.integers(3)) * 100, excluded=address(excluded), k=k, values=address(values),
        indices=address(indices),
    )  # fmt: skip


def contrast_tiles(module, draw):
    """A batch with itself or two towers; what of S stays ends anywhere."""
    alone, D = draw.flag(), draw.size(1)
    upstream = draw.flag()

    def side():
        n = draw.size(1, 200)
        X = draw.normal(n, D)
        factors, stride = draw.upstream(n) if upstream else ({}, 0)
        graded = bool(factors)
        return function(module, "ContrastSide", draw)(
            X=address(X), inverse_norm=address(draw.of(1 / np.linalg.norm(X, axis=1))),
            labels=address(pair_labels(draw, n)), n=n, **({"upstream_positive": 0, "upstream_negative": 0} | factors),
            upstream_positive_stride=stride, upstream_negative_stride=stride, loss=address(draw.out(n)),
            lse=address(draw.out(n)), slope=address(draw.out(n)) if graded else 0,
            shift=address(draw.out(n)) if graded else 0,
            dX=address(draw.of(np.zeros((n, D)))) if graded and draw.flag() else 0,
        )  # fmt: skip

    rows = side()
    tiles = function(module, "ContrastTiles", draw)(
        gemm=gemm(draw.dtype), set_threads=0, D=D, form=int(draw.rng.integers(3)),
        coefficients=address(draw.of([draw.rng.choice([2.0, 14.0, 900.0]), 0.0])), alone=alone,
        kept=int(draw.rng.choice([0, 10**5, 10**9])), threads=draw.threads,
    )  # fmt: skip
    function(module, "pair_contrast_tiles", draw)(rows, rows if alone else side(), tiles)
