"""The ops on pairs by themselves: what the losses do not already try."""

import pytest
import torch

from python_ref import cosine_similarity, informative_pairs
from python_ref.multi_similarity import multi_similarity_terms
from python_ref.pairs import pair_sets
from robustdml_ops.engine.op_arguments import flatten
from robustdml_ops.ops import ABSENT, pair_hinge, pair_hinge_sum, pair_lse, pair_lse_sum
from robustdml_ops.ops.pairs import pair_contrast
from robustdml_ops.ops.pairs.autograd import pair_sweep_op
from robustdml_ops.ops.pairs.backends import ContrastOptions, HingeOptions, LSEOptions, PairProblem
from robustdml_ops.ops.pairs.sets import PairSets
from tests.nightly import nightly_but
from tests.storages import Storages

MS = {"alpha": 2.0, "beta": 50.0, "base": 0.5}


def matrices(*rows, D=5, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, D, generator=generator, dtype=dtype).requires_grad_() for n in rows]


def random_labels(*sizes, classes=3, seed=0):
    """Classes from −1 on, and some rows that take no part."""
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randint(-2, classes, (n,), generator=generator) for n in sizes)
    return [labels.masked_fill(labels == -2, ABSENT) for labels in draws]


@pytest.mark.parametrize("epsilon", [0.0, 0.5, -0.5])
def test_ties_at_the_edge_of_mining_are_cut_as_by_the_reference(epsilon, backend):
    """Few different similarities, all exact in floating point; an equality is not "more similar".

    The exponents are small, so that the pairs of a tie are seen in their sum.
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (40, 4), generator=generator).double() * 2 - 1
    X, y = signs / 2, torch.randint(3, (40,), generator=generator)
    S, (positive, negative) = cosine_similarity(X, X), pair_sets(y)
    lowest = S.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    highest = S.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
    assert ((S - epsilon == highest) & positive).any()
    assert ((S + epsilon == lowest) & negative).any()
    settings = {"alpha": 2.0, "beta": 2.0, "base": 0.5}
    theirs = multi_similarity_terms(S, *informative_pairs(S, positive, negative, epsilon), **settings)
    ours = pair_lse(X, y, **settings, epsilon=epsilon, backend=backend)
    torch.testing.assert_close(ours, theirs)


WIDE_CLASSES = [
    (2**31, 0, 2**31 - 1),
    (-1, -2, -3),
    (-(2**31), -(2**31) - 1, 0),
    (1 - 2**63, 2 - 2**63, 2**63 - 1),
    (2**32, 0, -(2**32)),
]


@pytest.mark.parametrize("classes", WIDE_CLASSES, ids=str)
@pytest.mark.parametrize("absent", [False, True])
def test_any_integer_but_one_is_a_class(classes, absent, backend):
    """Also those that 32 bits do not hold, and those they do only by the number that stands for absent rows there."""
    X, C = matrices(30, 40)
    generator = torch.Generator().manual_seed(0)
    y, z = (torch.randint(0, 3 + absent, (n,), generator=generator) for n in (30, 40))
    wide = torch.tensor([*classes, ABSENT])
    present = torch.arange(30)[y < 3], torch.arange(40)[z < 3]
    for others, other_labels, kept in ((None, None, present[0]), (C, z, present[1])):
        ours = pair_lse(X, wide[y], others, others if others is None else wide[other_labels], **MS, backend=backend)
        rows = (X if others is None else others)[kept]
        positive, negative = pair_sets(y[present[0]], None if others is None else other_labels[kept])
        theirs = multi_similarity_terms(cosine_similarity(X[present[0]], rows), positive, negative, **MS)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine[present[0]], other)
            assert not mine[y == 3].any()


HINGE = {"positive_margin": 0.9, "negative_margin": -0.5, "positive_offset": 0.25}
SCALES = torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
CONTRAST = {"coefficients": torch.tensor([9.0, 0.0], dtype=torch.float64), "form": "outside"}
# Both sums of all kinds, as vectors and as one sweep.
KINDS = {
    "lse": lambda *pairs: sum(each.sum() for each in pair_lse(*pairs, **MS)),
    "lse at once": lambda *pairs: pair_lse_sum(*pairs, *SCALES, **MS, epsilon=0.3),
    "hinge": lambda *pairs: sum(each.sum() for each in pair_hinge(*pairs, **HINGE)[:2]),
    "hinge at once": lambda *pairs: pair_hinge_sum(*pairs, *SCALES, **HINGE),
    "contrast": lambda *pairs: sum(each.sum() for each in pair_contrast(*pairs, **CONTRAST)[1:3]),
    "contrast at once": lambda *pairs: pair_contrast(*pairs, SCALES[0], **CONTRAST).total,
}


@pytest.mark.parametrize("kind", nightly_but(["hinge at once"], KINDS))
@pytest.mark.parametrize("first", nightly_but(["same"], ["same", "other"]))
def test_compiled_graphs_know_the_anchors_own_labels(kind, first):
    """Whichever was traced first, the other is traced anew."""
    torch.use_deterministic_algorithms(False)  # its NaN filling is not traced
    torch._dynamo.reset()
    function = KINDS[kind]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for same in [True, False, True] if first == "same" else [False, True, False]:
        X, C = matrices(20, 20)
        y = random_labels(20)[0]
        arguments = (X, y, C, y if same else y.clone())
        ours, theirs = compiled(*arguments), function(*arguments)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(*(torch.autograd.grad(r, (X, C)) for r in (ours, theirs)))


class Exported(torch.nn.Module):
    """One of KINDS as a module; without z the labels are one input."""

    def __init__(self, kind):
        super().__init__()
        self.function = KINDS[kind]

    def forward(self, X, y, C, z=None):
        return self.function(X, y, C, y if z is None else z)


@pytest.mark.parametrize("kind", nightly_but(["lse at once"], KINDS))
@pytest.mark.parametrize("strict", nightly_but([True], [False, True]))
# PyTorch 2.6 tells of scales that are no arguments.
@pytest.mark.filterwarnings("ignore:.*get_attr.*:UserWarning")
def test_exported_graphs_know_the_anchors_own_labels(kind, strict):
    torch.use_deterministic_algorithms(False)  # its NaN filling is not traced
    X, C = (matrix.detach().requires_grad_(strict) for matrix in matrices(20, 20))
    y = random_labels(20)[0]
    module = Exported(kind)
    for arguments in ((X, y, C), (X, y, C, y), (X, y, C, y.clone())):
        exported = torch.export.export(module, arguments, strict=strict).module()
        torch.testing.assert_close(exported(*arguments), module(*arguments))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.randn(4, 5), torch.zeros(4)), ValueError, "candidate_labels must be integers"),
        ((torch.randn(4, 5), None), TypeError, "candidate_labels must be a torch.Tensor, not NoneType"),
        ((torch.randn(4, 5), torch.arange(3)), ValueError, r"candidate_labels must have shape \(4,\)"),
        ((torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)), ValueError, "candidates must have 5 columns"),
        ((None, torch.zeros(4, dtype=torch.int64)), ValueError, "candidate_labels without candidates"),
        ((torch.full((4, 5), torch.inf), torch.zeros(4, dtype=torch.int64)), ValueError, r"candidates\[0\] .* has NaN"),
        ((torch.randn(4, 5, device="meta"), torch.zeros(4, dtype=torch.int64)), ValueError, "on one device"),
    ],
)
def test_candidates_must_fit(arguments, error, message):
    X, y = matrices(6)[0], torch.arange(6)
    with pytest.raises(error, match=message):
        pair_lse(X, y, *arguments, **MS)
    with pytest.raises(error, match=message):
        pair_hinge(X, y, *arguments, positive_margin=1, negative_margin=0)


def test_settings_must_fit():
    X, y = matrices(6)[0], torch.arange(6)
    for name, value, message in (
        ("alpha", 0.0, "alpha must be positive and finite, got 0.0"),
        ("beta", -1.0, "beta must be positive and finite, got -1.0"),
        ("base", float("nan"), "base must be finite, got nan"),
        ("epsilon", float("inf"), "epsilon must be finite, got inf"),
        ("candidate_weights", torch.rand(5), "candidate_weights must be a floating-point vector of length 6"),
        ("candidate_weights", torch.rand(6, requires_grad=True), "candidate_weights are constants"),
    ):
        with pytest.raises(ValueError, match=message):
            pair_lse(X, y, **{**MS, name: value})
    with pytest.raises(ValueError, match="distance='l1': expected one of cosine, euclidean"):
        pair_hinge(X, y, positive_margin=0, negative_margin=1, distance="l1")
    with pytest.raises(ValueError, match=r"negative_scale must have shape \(\) or \(6,\), got \(5,\)"):
        pair_lse_sum(X, y, None, None, torch.ones(()), torch.ones(5), **MS)
    with pytest.raises(ValueError, match="positive_scale is a constant of this op"):
        pair_lse_sum(X, y, None, None, torch.ones((), requires_grad=True), torch.ones(()), **MS)


@pytest.mark.parametrize("bank", [False, True])
def test_registered_op_keeps_the_contract_of_the_registry(bank):
    X, C = (matrix.detach() for matrix in matrices(6, 9))
    y, z = random_labels(6, 9)
    others, sets = (C if bank else None), PairSets.of(y, z if bank else None)
    weights, scale = torch.rand(9 if bank else 6, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    by_anchor = torch.rand(6, dtype=torch.float64)
    hinges = [PairProblem(HingeOptions(0.9, 0.1, 0.0, 0.0, False, average), sets) for average in (False, True)]
    for problem in (PairProblem(LSEOptions(2.0, 9.0, 0.5, 0.1), sets, weights), *hinges):
        for scales, want in (
            ((scale, scale), [True, bank]),
            ((by_anchor, scale), [False, bank]),
            ((None, None), [False, False]),
        ):
            settings = (None, "auto", torch.float64, want, *flatten(problem))
            torch.library.opcheck(pair_sweep_op, (X, others, *scales, *settings))
    coefficients = torch.tensor([9.0, 0.5], dtype=torch.float64)
    for scales, want in (((by_anchor, scale), [True, bank, True]), ((None, None), [False, False, False])):
        constants = flatten(PairProblem(ContrastOptions("inside"), sets))
        settings = (coefficients, "auto", torch.float64, want, *constants)
        torch.library.opcheck(pair_sweep_op, (X, others, *scales, *settings))


COMPILED = [f"{kind} {wanted}" for kind in ("lse", "hinge") for wanted in ("X", "C", "XC", "batch")]


@pytest.mark.parametrize("case", nightly_but(["lse XC"], COMPILED))
def test_compiled_is_as_eager(case):
    """Values and gradients of both ways, whatever has a gradient; and again where the last batch is smaller."""
    kind, wanted = case.split()
    torch.use_deterministic_algorithms(False)  # its NaN filling is not traced
    torch._dynamo.reset()
    scales = torch.tensor(0.5, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    sums, weighted = (pair_lse, pair_lse_sum) if kind == "lse" else (pair_hinge, pair_hinge_sum)
    options = {**MS, "epsilon": 0.1} if kind == "lse" else {"positive_margin": 0.9, "negative_margin": 0.1}

    def both(X, y, C, z, positive_scale, negative_scale):
        each = sums(X, y, C, z, **options)
        total = weighted(X, y, C, z, positive_scale, negative_scale, **options)
        return (each.positive * 2).sum() + (each.negative**2).sum() + 3 * total

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for batch in (6, 4):
        X, C = matrices(batch, 9)
        y, z = random_labels(batch, 9)
        X.requires_grad_(wanted != "C")
        C.requires_grad_("C" in wanted)
        arguments = (X, y, *((None, None) if wanted == "batch" else (C, z)), scales[0], scales[1][:batch])
        ours, theirs = compiled(*arguments), both(*arguments)
        torch.testing.assert_close(ours, theirs)
        leaves = {"X": (X,), "C": (C,), "XC": (X, C), "batch": (X,)}[wanted]
        torch.testing.assert_close(*(torch.autograd.grad(value, leaves) for value in (ours, theirs)))


@pytest.mark.parametrize("n", [512, 2500])
def test_no_matrix_of_pairs(n):
    """Neither forward nor backward makes one in PyTorch; of one chunk the native sweep has S."""
    X, y, scale = torch.randn(n, 8, requires_grad=True), torch.arange(n) // 4, torch.tensor(1.0 / n)
    with Storages() as storages:
        pair_lse_sum(X, y, None, None, scale, scale, **MS, epsilon=0.1, backend="native").backward()
    assert sum(size >= 4 * n * n for size in storages.nbytes.values()) == 0
