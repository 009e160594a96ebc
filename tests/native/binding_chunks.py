"""What calls by address say of a chunk of rows, and calls of the native function that descends."""

import numpy as np
from binding_draws import ABSENT, address, function


def anchor_chunk(module, draw, n, B, S, inverse_norm, biases_wanted, upstream, stride, each):
    return function(module, "AnchorChunk", draw)(
        S=address(S),
        rows=n,
        B=B,
        alpha=float(draw.rng.choice([0.5, 32, 2000])),
        drop_above=address(draw.normal(B)) if draw.flag() else 0,
        labels_each=each,
        label_weights=address(draw.of(draw.rng.random((B, each)))) if draw.flag() else 0,
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


def sorted_labels(draw, labels):
    order = draw.of(np.argsort(labels, kind="stable"), np.int64)
    return {"sorted_labels": address(draw.of(labels[order], np.int64)), "order": address(order)}


def confidences(draw, n, B):
    (values, *_), view, _ = draw.matrix(n, B)
    logits = draw.flag()
    if not logits:
        view[...] = draw.rng.random((n, B))
    strides = [s // view.itemsize for s in view.strides]
    return {
        "values": values, "anchor_stride": strides[0], "candidate_stride": strides[1], "logits": logits,
        "beta": float(draw.rng.choice([0, 1, 100])), "threshold": 0.3,
    }  # fmt: skip


def class_chunk(module, draw, C, H, B, S, inverse_norm):
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
        drop_above=address(draw.normal(B)) if draw.flag() else 0,
        labels_each=1,
        inverse_norm=address(inverse_norm),
    )


def class_sums(draw, B):
    shift, total = draw.of(np.full(B, -np.inf), np.float64), draw.of(np.zeros(B), np.float64)
    return {"shift": address(shift), "total": address(total), "target": address(draw.normal(B))}


def class_upstream(draw, B):
    lse = draw.of(4 + draw.rng.random(B))
    return {"lse": address(lse), "dlse": address(draw.normal(B)), "dlogit": address(draw.normal(B))}


def pair_labels(draw, rows):
    labels = draw.labels(rows, 4, np.int32)
    labels[draw.rng.random(rows) < 0.1] = ABSENT
    return labels


def pair_lse(module, draw, m):
    weights = draw.of(draw.rng.random(m)) if draw.flag() else None
    return function(module, "PairLSE", draw)(
        alpha=float(draw.rng.choice([2, 500])), beta=float(draw.rng.choice([50, 500])), base=0.5, epsilon=0.1,
        mining=draw.flag(), row_max=True, candidate_weights=address(weights),
    )  # fmt: skip


def pair_hinge(module, draw, n, anchors, candidates):
    counts = [draw.out(n, dtype=np.int64) for _ in range(2)]
    return function(module, "PairHinge", draw)(
        positive_margin=0.3, negative_margin=-0.2, positive_offset=0.1, negative_offset=-0.1, euclidean=draw.flag(),
        positive_count=address(counts[0]), negative_count=address(counts[1]), near=0.5, resolution=1e-6,
        anchors=address(anchors), candidates=address(candidates), D=anchors.shape[1],
    )  # fmt: skip


def pair_chunk(module, draw, n, m, S, labels, others, itself, upstream, stride, norms):
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
