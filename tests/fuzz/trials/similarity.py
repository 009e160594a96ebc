"""The matrix of similarities, and the nearest of it."""

import torch
from hypothesis import strategies as st

from python_ref import anchor
from robustdml_ops import ops
from tests.fuzz.draws import backends, flags, floats
from tests.fuzz.oracle import EPSILON, Check, Tensors, Trial, balanced, close
from tests.fuzz.trials.batches import Draw, chance, digits, proxied, wanted_of


def similarity(draw: Draw) -> Trial:
    batch, backend = proxied(draw), draw(backends)
    of_both = batch.X.dtype if batch.X.dtype == batch.P.dtype else batch.compute
    dtype = draw(floats) if chance(draw) else None
    wanted = wanted_of(draw, "embeddings", "proxies")

    def call(t: Tensors):
        S = ops.similarity(t["embeddings"], t["proxies"], dtype=dtype, backend=backend)
        assert S.dtype == (of_both if dtype is None else dtype)
        return S

    def expected(t: Tensors):
        return anchor.cosine_similarity(t["embeddings"], t["proxies"])

    rounding = torch.finfo(of_both if dtype is None else dtype)
    # Rounded once at the end; a gradient arrives in that type, too.
    narrow = rounding.eps / EPSILON[batch.compute]
    return Trial(
        call, expected, {"embeddings": batch.X, "proxies": batch.P}, ("embeddings", "proxies"), wanted, batch.compute,
        digits(batch.D), [batch.of_class], terms=64 + 2 * narrow, least=rounding.tiny * rounding.eps,
    )  # fmt: skip


def nearest(draw: Draw) -> Check:
    batch, backend = proxied(draw), draw(backends)
    exclude = draw(flags) and batch.B <= batch.C and batch.C > 1
    k = draw(st.integers(1, batch.C - exclude))

    def judge() -> None:
        values, indices = ops.nearest(batch.X, batch.P, k, exclude_self=exclude, backend=backend)
        rows = {"queries": batch.X, "gallery": batch.P}
        exact, _ = balanced(rows, tuple(rows), batch.compute)
        S = anchor.cosine_similarity(exact["queries"], exact["gallery"])
        if exclude:
            S[torch.arange(batch.B), torch.arange(batch.B)] = -torch.inf
        allowed = torch.tensor(2 * digits(batch.D) * EPSILON[batch.compute], dtype=torch.float64)
        close("the k largest", values, S.topk(k).values, allowed)
        close("what is at the indices", values, S.gather(1, indices), allowed)
        assert all(len(set(row)) == k for row in indices.tolist()), "an index twice"
        ties = (values[:, 1:] == values[:, :-1]) & (indices[:, 1:] < indices[:, :-1])
        assert not ties.any() and (values[:, 1:] <= values[:, :-1]).all(), "not in order"

    return Check(judge)


TRIALS = {"similarity": similarity, "nearest": nearest}
