"""Epilogues of pairs that leave dL/dS in the type of the products' operands: the gradient in place, rounded once.

Those of anchors and classes are tried with their products in test_as_they_are_triton.py.
"""

import pytest
import torch

from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops.pairs.problem import PairBuffers, PairHingeProblem, PairLSEProblem, PairSets
from robustdml_ops.ops.pairs.triton import TritonPairs
from tests.triton_here import DEVICE, MARKS

pytestmark = MARKS
ROWS, B = 13, 37
BF16 = torch.bfloat16
PROBLEMS = {
    "lse": lambda sets: PairLSEProblem(sets, 2.0, 9.0, 0.5, 0.1, None),
    "hinge": lambda sets: PairHingeProblem(sets, 0.9, 0.1, 0.0, 0.0, False),
}


def run(name, S, dS):
    one = lambda *shape: torch.ones(shape, device=DEVICE)  # noqa: E731
    sums, counts = torch.empty(2, ROWS, device=DEVICE), torch.empty(2, ROWS, dtype=torch.int64, device=DEVICE)
    chunk = Chunk(0, ROWS, S, one(ROWS, 3), one(ROWS), False, None, dS)
    sets = PairSets.of(*((torch.arange(count) % 5).to(DEVICE) for count in (ROWS, B)))
    TritonPairs().pair_sums(chunk, PROBLEMS[name](sets), PairBuffers((one(), one()), *sums, counts, None))


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_in_the_operand_type(name):
    cosines = torch.linspace(-1, 1, ROWS * B, device=DEVICE).view(ROWS, B).sin()
    S, dS = cosines.clone(), torch.zeros(ROWS, B, dtype=BF16, device=DEVICE)
    run(name, S, dS)
    assert torch.equal(S, cosines)
    in_place = cosines.clone()
    run(name, in_place, None)
    written = in_place != cosines
    assert written.any()
    # Triton's interpreter cuts off what a GPU rounds.
    tolerance = 0 if DEVICE.type == "cuda" else 2.0**-7
    torch.testing.assert_close(dS[written], in_place.to(BF16)[written], rtol=tolerance, atol=0)
