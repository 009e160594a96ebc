"""Epilogues that leave dL/dS in the type of the products' operands: the gradient they make in place, rounded once."""

import pytest
import torch

from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.anchor.backends import TritonAnchor
from robustdml_ops.ops.anchor.problem import AnchorProblem, AnchorSums
from robustdml_ops.ops.classes.backends import TritonClasses
from robustdml_ops.ops.classes.problem import ClassProblem, ClassUpstream
from robustdml_ops.ops.pairs.problem import PairBuffers, PairHingeProblem, PairLSEProblem, PairSets
from robustdml_ops.ops.pairs.triton import TritonPairs
from tests.triton_here import DEVICE, MARKS

pytestmark = MARKS
ROWS, B, H = 13, 37, 2
BF16 = torch.bfloat16


def labels(count=B):
    return (torch.arange(count) % 5).to(DEVICE)


def one(*shape):
    return torch.ones(shape, device=DEVICE)


def anchors(S, dS):
    bias = torch.zeros(B, device=DEVICE)
    problem = AnchorProblem(8.0, bias, bias, None, LabelSets.of(labels()))
    lse = torch.empty(2, ROWS, device=DEVICE)
    chunk = Chunk(0, ROWS, S, S, S, short=False, scale=None, dS=dS)
    TritonAnchor().anchor_lse(chunk, AnchorSums((one(), one()), *lse, None, None), problem)


def classes(pooling):
    def run(S, dS):
        centers = 1 if pooling == "none" else H
        problem = ClassProblem(
            labels=LabelSets.of(labels()), scale=4 * one(), bias=None, target_bias=0.0, exclude_target=True,
            centers=centers, pooling=pooling, gamma=0.2, normalize=True,
        )  # fmt: skip
        upstream = ClassUpstream(one(B), one(B), one(B))
        S = S[: ROWS // centers * centers]
        chunk = Chunk(0, len(S), S, S, S, short=False, scale=None, dS=dS)
        TritonClasses().class_lse_backward(chunk, problem, upstream)

    return run


def pairs(problem):
    def run(S, dS):
        sums, counts = torch.empty(2, ROWS, device=DEVICE), torch.empty(2, ROWS, dtype=torch.int64, device=DEVICE)
        chunk = Chunk(0, ROWS, S, one(ROWS, 3), one(ROWS), False, None, dS)
        buffers = PairBuffers((one(), one()), *sums, counts, None)
        TritonPairs().pair_sums(chunk, problem(PairSets.of(labels(ROWS), labels())), buffers)

    return run


def hinge(sets):
    return PairHingeProblem(sets, 0.9, 0.1, 0.0, 0.0, False)


def lse(sets):
    return PairLSEProblem(sets, 2.0, 9.0, 0.5, 0.1, None)


RUNS = {
    "anchors": anchors,
    **{f"classes, {pooling}": classes(pooling) for pooling in ("none", "max", "softmax")},
    "pairs, lse": pairs(lse),
    "pairs, hinge": pairs(hinge),
}


@pytest.mark.parametrize("name", RUNS)
def test_gradient_in_the_operand_type(name):
    cosines = torch.linspace(-1, 1, ROWS * B, device=DEVICE).view(ROWS, B).sin()
    S, dS = cosines.clone(), torch.zeros(ROWS, B, dtype=BF16, device=DEVICE)
    RUNS[name](S, dS)
    assert torch.equal(S, cosines)  # which a column of sub-centres is read from again
    in_place = cosines.clone()
    RUNS[name](in_place, None)
    written = in_place != cosines
    assert written.any()
    # Triton's interpreter cuts off what a GPU rounds.
    tolerance = 0 if DEVICE.type == "cuda" else 2.0**-7
    torch.testing.assert_close(dS[written], in_place.to(BF16)[written], rtol=tolerance, atol=0)
