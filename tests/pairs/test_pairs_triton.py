"""Triton's sums of pairs against the eager ones: on the GPU, or in Triton's interpreter on the CPU."""

import pytest
import torch

from robustdml_ops.engine.similarity_chunks import Chunk
from robustdml_ops.ops import pair_hinge
from robustdml_ops.ops.pairs import compiled_backends, loss_kernels
from robustdml_ops.ops.pairs.backends import PairSums
from robustdml_ops.ops.pairs.sets import PairSets
from robustdml_ops.ops.pairs.sweep import BACKENDS
from tests.nightly import nightly_but
from tests.pairs import cases
from tests.triton_here import DEVICE, MARKS

TRITON = BACKENDS["triton"]

pytestmark = MARKS
SMALL_BLOCKS = {"BLOCK_R": 1, "BLOCK_M": 32, "num_warps": 4}
SHAPES = [(1, 1, 1), (5, 1030, 9), (12, None, 17), (20, "anew", 3), (7, "first", 3)]


@pytest.mark.parametrize("shape", nightly_but([(12, None, 17), (7, "first", 3)], SHAPES), ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("small_chunks")
def test_same_as_eager(shape, dtype):
    for name in cases.PROBLEMS:
        cases.assert_same_as_eager(TRITON, name, shape, dtype, DEVICE)


@pytest.mark.parametrize("related", cases.RELATED, ids=str)
@pytest.mark.parametrize("name", nightly_but(["mined", "cosine", "each"], cases.PROBLEMS))
@pytest.mark.usefixtures("small_chunks")
def test_several_labels_and_ids_are_the_same_as_eager(name, related):
    for shape in ((5, 40, 3), (12, None, 17), (7, "first", 3)):
        cases.assert_same_as_eager(TRITON, name, shape, torch.float64, DEVICE, related=related)


@pytest.mark.parametrize("name", nightly_but(["mined", "euclidean"], cases.PROBLEMS))
def test_rows_in_parts_same_as_eager(name, monkeypatch):
    """A program takes one row, or some of its candidates; three parts, of which the last one is short."""
    monkeypatch.setattr(compiled_backends, "epilogue_launch", lambda *_: SMALL_BLOCKS)
    monkeypatch.setattr(compiled_backends, "_PROGRAMS", 6)
    assert compiled_backends.parts_of(2, 360, 32) == (3, 128)
    cases.assert_same_as_eager(TRITON, name, (2, 360, 3), torch.float32, DEVICE)
    if name == "mined" and DEVICE.type == "cuda":
        cases.assert_same_bits_twice(TRITON, name, (2, 360, 3), DEVICE)


@pytest.mark.parametrize("shape", nightly_but([(7, "first", 3)], SHAPES), ids=str)
def test_hardest_pairs(shape):
    for name in cases.PROBLEMS:
        cases.assert_same_hardest(TRITON, name, shape, torch.float32, DEVICE)


@pytest.mark.parametrize("name", nightly_but(["all", "mined", "cosine"], cases.PROBLEMS))
def test_hardest_pairs_of_rows_in_parts(name, monkeypatch):
    monkeypatch.setattr(compiled_backends, "epilogue_launch", lambda *_: SMALL_BLOCKS)
    monkeypatch.setattr(compiled_backends, "_PROGRAMS", 6)
    cases.assert_same_hardest(TRITON, name, (2, 360, 3), torch.float32, DEVICE)


@pytest.mark.parametrize("shape", [(3, 40, 3), (2, 70, 1), (14, None, 70)], ids=str)
@pytest.mark.parametrize(
    "given", nightly_but([torch.float32, torch.bfloat16], [torch.float32, torch.float64, torch.bfloat16, torch.float16])
)
def test_near_rows_keep_their_distance(shape, given, monkeypatch):
    # Several blocks and a rest; every near pair is made of its rows one after the other, slowly in the interpreter.
    monkeypatch.setattr(compiled_backends, "epilogue_launch", lambda *_: SMALL_BLOCKS)
    cases.assert_near_rows_keep_their_distance(TRITON, shape, (given, given), DEVICE)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a compiled kernel can't be watched")
@pytest.mark.parametrize("equal", [3, 24])
def test_of_few_near_pairs_each_is_made_alone_and_of_many_all_at_once(equal, monkeypatch):
    """A collapsed batch would take a search and a pass over two rows for each of its pairs."""
    made, near_distances = [], loss_kernels.near_distances

    def noted(*arguments):
        made.append(arguments[3])
        return near_distances(*arguments)

    monkeypatch.setattr(loss_kernels, "near_distances", noted)
    X = torch.randn(24, 5)
    X[:equal] = X[0]
    found = pair_hinge(
        X, torch.arange(24) % 2, positive_margin=0.0, negative_margin=3.0, distance="euclidean", backend="triton"
    )
    U = torch.nn.functional.normalize(X.double())
    same = torch.arange(24)[:, None] % 2 == torch.arange(24) % 2
    truth = torch.cdist(U, U, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(found.positive.double(), (truth * same).sum(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.negative.double(), ((3 - truth) * ~same).sum(1), rtol=1e-5, atol=1e-5)
    assert made == [1] * 6 if equal == 3 else made == [128] * 8


@pytest.mark.parametrize("euclidean", [False, True])
def test_means_are_sums_over_terms(euclidean):
    cases.assert_means_are_sums_over_terms(TRITON, euclidean, torch.float32, DEVICE)


def test_distances_up_to_the_resolution_have_no_gradient():
    cases.assert_no_gradient_up_to_the_resolution("triton", DEVICE)


def test_logistic_losses_near_0_keep_their_digits():
    cases.assert_logistic_losses_near_0_keep_their_digits(TRITON, DEVICE)


def test_a_nan_reaches_the_result():
    cases.assert_a_nan_reaches_the_result(TRITON, DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_set_that_mining_empties_has_the_sum_0(dtype):
    cases.assert_a_set_that_mining_empties_has_the_sum_0(TRITON, dtype, DEVICE)


def epilogue(name, S, dS):
    """Of candidates in five classes; without dS the gradient is written in place of S."""
    (n, m), one = S.shape, S.new_ones(())
    sums, counts = torch.empty(2, n, device=DEVICE), torch.empty(2, n, dtype=torch.int64, device=DEVICE)
    chunk = Chunk(0, n, S, S.new_ones(n, 3), S.new_ones(n), False, None, dS)
    sets = PairSets.of(*((torch.arange(count) % 5).to(DEVICE) for count in (n, m)))
    problem = cases.problems(sets, torch.float32, m, DEVICE)[name]
    TRITON.pair_sums(chunk, problem, PairSums((one, one), *sums, counts, None))


@pytest.mark.parametrize("name", ["mined", "cosine"])
def test_the_gradient_in_the_type_of_the_operands_is_the_one_in_place_rounded_once(name):
    """Epilogues of anchors and classes are tried with their products in tests/rows/test_as_they_are_triton.py."""
    cosines = torch.linspace(-1, 1, 13 * 37, device=DEVICE).view(13, 37).sin()
    S, dS = cosines.clone(), torch.zeros(13, 37, dtype=torch.bfloat16, device=DEVICE)
    epilogue(name, S, dS)
    assert torch.equal(S, cosines)
    in_place = cosines.clone()
    epilogue(name, in_place, None)
    written = in_place != cosines
    assert written.any()
    # Triton's interpreter cuts off what a GPU rounds.
    tolerance = 0 if DEVICE.type == "cuda" else 2.0**-7
    torch.testing.assert_close(dS[written], in_place.bfloat16()[written], rtol=tolerance, atol=0)
