"""Each bad input has a clear error or a documented value: never a crash, a hang or a silent NaN."""

import itertools

import pytest
import torch
from cases import BANK_NAMES, CPU_BACKENDS, MATRIX_NAMES, NAMES, assert_same, make_case

from robustdml_ops import losses
from robustdml_ops.ops import ABSENT
from tests.compatibility.peers import CLASS_NAMES
from tests.every_call import LOSSES

X = torch.randn(4, 3)
Y = torch.tensor([0, 1, 2, 1])
WEIGHTED = {name: call for name, call in LOSSES.items() if name != "ProcSimLoss"}  # which makes its own


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.randn(4, 5), Y), ValueError, "embeddings must have 3 columns"),
        ((torch.randn(4), Y), ValueError, "embeddings must be a floating-point matrix"),
        ((X, Y[None]), ValueError, r"labels must have shape \(4,\)"),
        ((X, Y + 0.5), ValueError, r"labels must be numbers of classes, got \[0.5, 1.5, 2.5\]"),
        ((X.numpy(), Y), TypeError, r"embeddings must be .* not ndarray: pass torch.from_numpy\(embeddings"),
        ((X, Y[0].numpy()), TypeError, r"not ndarray: pass torch.from_numpy\(labels\)"),
        ((X, [0, 1, 2, 1]), TypeError, r"labels must be a torch.Tensor, not list: pass torch.tensor\(labels\)"),
        ((X, ["a", "b", "c"]), TypeError, r"not list: number .*numpy.unique\(labels, return_inverse=True\)\[1\]"),
        ((X, torch.tensor([0, 1, 6, 1])), IndexError, r"labels\[2\] = 6 is outside 0 … 5"),
        ((X, torch.tensor([0, -1, 2, 1])), IndexError, r"labels\[1\] = -1 is outside 0 … 5"),
        ((X.clone().index_fill_(0, Y[2:3], torch.inf), Y), ValueError, r"embeddings\[2\] has NaN or inf"),
        ((X.to("meta"), Y), ValueError, "must be on one device.*meta.*cpu"),
        ((X, Y, None, X[:2], Y[:2]), ValueError, "compares samples with its own proxies: leave ref_emb and ref_labels"),
        ((X, Y, torch.ones(4)), TypeError, "must be a miner's triplets .* got Tensor; weights .* sample_weights="),
        ((X, Y, (Y, Y)), TypeError, "indices_tuple must be a miner's triplets"),
        ((X, Y, (Y, Y, Y[:2])), ValueError, r"indices_tuple must hold pairs of equal lengths, got \[4, 4, 2\]"),
        ((X, Y, (Y, Y, Y.float())), ValueError, r"indices_tuple\[2\] must be a vector of integers"),
        ((X, Y, (Y, Y + 4, Y)), IndexError, r"indices_tuple\[1\] holds 6, outside 0 … 3"),
    ],
)
def test_batch(arguments, error, message):
    for name in CLASS_NAMES:
        with pytest.raises(error, match=message):
            getattr(losses, name)(6, 3)(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((Y, Y, Y, Y),), TypeError, "ref_emb must be a torch.Tensor, not tuple"),
        ((X[:2],), ValueError, r"ref_labels must have shape \(2,\), one for each row of ref_emb"),
        ((None, Y.clone()), ValueError, "ref_labels without ref_emb"),
        ((X, (0, 1)), TypeError, "ref_labels must be a torch.Tensor, not tuple"),
        ((X, Y[:2]), ValueError, r"ref_labels must have shape \(4,\), one for each row of ref_emb"),
        ((torch.randn(4, 5), Y), ValueError, "ref_emb must have 3 columns"),
        ((torch.full((4, 3), torch.nan), Y), ValueError, r"candidates\[0\] \(ref_emb of a loss\) has NaN"),
    ],
)
def test_reference_set(arguments, error, message):
    for kind in (losses.MultiSimilarityLoss, losses.ContrastiveLoss, losses.MemoryContrastiveLoss):
        with pytest.raises(error, match=message):
            kind()(X, Y, None, *arguments)


def test_reference_set_beside_weights_of_a_batch():
    with pytest.raises(ValueError, match="BSPMLLoss weighs the pairs of one batch: leave ref_emb and ref_labels out"):
        losses.BSPMLLoss()(X, Y, None, X[:2], Y[:2])


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (torch.ones(3), ValueError, "sample_weights must be a floating-point vector of length 8"),
        (torch.ones(8, dtype=torch.int64), ValueError, r"int64: convert it with sample_weights.float\(\)"),
        (torch.ones(8).index_fill(0, Y[1:2], -1), ValueError, r"must be finite and not negative, got \[-1.0\]"),
        (torch.ones(8).index_fill(0, Y[1:2], torch.nan), ValueError, "must be finite and not negative"),
        (torch.ones(8).index_fill(0, Y[1:2], torch.inf), ValueError, "must be finite and not negative"),
        ((Y, Y, Y, Y), TypeError, "sample_weights must be a torch.Tensor, not tuple"),
    ],
)
def test_sample_weights(weights, error, message):
    for call in WEIGHTED.values():
        with pytest.raises(error, match=message):
            call(sample_weights=weights)


@pytest.mark.parametrize("name", WEIGHTED)
def test_no_sample_is_left(name):
    """But for a regulariser of the parameters the loss is 0, and no sample has a gradient."""
    call = WEIGHTED[name]
    whole = call.inputs() | {"sample_weights": torch.zeros(8, dtype=torch.float64)}
    for inputs in (whole, {key: value[:0] for key, value in call.inputs().items()}):
        leaf = inputs[call.differentiable[0]].requires_grad_()
        loss = call.make()(**inputs)
        assert loss == 0 or name == "AdaptiveProxyAnchorLoss"
        assert not torch.autograd.grad(loss, leaf)[0].any()


@pytest.mark.parametrize(
    ("confidences", "error", "message"),
    [
        (torch.rand(4, 5), ValueError, "confidences must have 6 columns"),
        (torch.rand(3, 6), ValueError, "confidences must have 4 rows"),
        (torch.rand(4, 6) + 1, ValueError, r"confidences must lie in \[0, 1\]"),
        (torch.full((4, 6), -0.1), ValueError, r"confidences must lie in \[0, 1\]"),
        (torch.full((4, 6), torch.nan), ValueError, r"confidences must lie in \[0, 1\], got nan"),
        (torch.rand(4, 6, requires_grad=True), ValueError, r"constants of this loss: pass confidences.detach\(\)"),
        (Y, ValueError, "confidences must be a floating-point matrix"),
        ((torch.rand(4, 2), torch.rand(6, 2)), TypeError, r"a tensor \(B, C\) or \(hidden, weight, bias\)"),
        ((torch.rand(4, 2), torch.rand(6, 3), torch.rand(6)), ValueError, "weight must have 2 columns"),
        ((torch.rand(4, 2), torch.rand(5, 2), torch.rand(6)), ValueError, "weight must have 6 rows"),
        ((torch.rand(4, 2), torch.rand(6, 2), torch.rand(5)), ValueError, "bias must be a .* length 6"),
    ],
)
def test_confidences(confidences, error, message):
    with pytest.raises(error, match=message):
        losses.SmoothProxyAnchorLoss(6, 3)(X, confidences)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: losses.ProxyAnchorLoss(3, 3, reduction="total"), "reduction='total': expected one of mean, sum, none"),
        (lambda: losses.SmoothProxyAnchorLoss(3, 3, threshold=1.0), r"threshold must lie in \(0, 1\)"),
        (lambda: losses.AdaptiveProxyAnchorLoss(3, 3, margin=0), "margin must be positive"),
        (lambda: losses.AdaptiveProxyAnchorLoss(3, 3, negative_margin="class"), "expected one of sample, proxy"),
        (lambda: losses.ProxyNCALoss(1, 3, include_positive=False), "needs at least 2 classes, got num_classes=1"),
        (
            lambda: losses.ContrastiveLoss(distance="manhattan"),
            "='manhattan': expected one of euclidean, cosine, squared",
        ),
        (lambda: losses.BSPMLLoss(reduction="total"), "reduction='total'"),
        (lambda: losses.SuperLoss(reduction="total"), "reduction='total'"),
        (lambda: losses.MemoryContrastiveLoss(variant="code"), "variant='code': expected one of paper, xbm, authors"),
    ],
)
def test_settings(build, message):
    """Numbers are swept in tests/package/test_hostile_input.py."""
    with pytest.raises(ValueError, match=message):
        build()


def test_margins_at_the_pole():
    loss_function = losses.AdaptiveProxyAnchorLoss(6, 3)
    loss_function.margins.data.fill_(-0.05)
    with pytest.raises(ValueError, match=r"mean\(margins\) = -0.05.*pole at 0"):
        loss_function(X, Y)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_an_infinite_upstream_is_no_error_of_the_inputs(reduction):
    """A loss scaler lets it happen, looks at the gradients and skips the step."""
    loss_function = losses.ProxyAnchorLoss(6, 3, reduction=reduction)
    (loss_function(X, Y).sum() * torch.inf).backward()
    assert not torch.isfinite(loss_function.proxies.grad).all()


def zero_rows(case):
    """Of cosine 0 with everything, and without a gradient."""
    with torch.no_grad():
        case.embeddings[2] = 0
        if case.name in MATRIX_NAMES:
            case.by_rows(case.parameter)[1] = 0


def labelled(*numbers):
    return lambda case: setattr(case, "labels", torch.tensor(numbers))


# Samples, classes, and what is done to the batch.
EDGES = {
    "no samples": (6, 6, lambda case: case.keep(torch.zeros(6, dtype=torch.bool))),
    "all rejected": (6, 6, lambda case: setattr(case, "weights", torch.zeros(6, dtype=torch.float64))),
    "one sample": (1, 6, lambda case: None),
    "one class": (5, 1, lambda case: None),
    "labels of one class": (6, 6, labelled(*6 * [0])),
    "every class once": (6, 6, labelled(*range(6))),
    "zero rows": (6, 6, zero_rows),
    "zero rows of pairs": (6, 6, lambda case: (labelled(0, 0, 1, 1, 2, 2)(case), zero_rows(case))),
    "no labels": (6, 6, labelled(*6 * [ABSENT])),
    "an empty bank": (6, 6, lambda case: case.bank_labels.fill_(ABSENT)),
}


# Where an edge is none, and where the reference does not go.
OTHERS = {*((name, "no labels") for name in MATRIX_NAMES), ("bspml", "no samples")}
OTHERS |= {(name, "an empty bank") for name in NAMES if name not in BANK_NAMES}


@pytest.mark.parametrize(("name", "edge"), [case for case in itertools.product(NAMES, EDGES) if case not in OTHERS])
def test_edges_are_the_references(name, edge):
    """A connected 0 where nobody is left, but for regularisers of the parameters."""
    B, C, change = EDGES[edge]
    for backend, reduction in itertools.product(CPU_BACKENDS, ("mean", "none")):
        case = make_case(name, B, max(C, 2) if name == "proxy-nca-2017" else C, 3, reduction=reduction, backend=backend)
        change(case)
        assert_same(case)


@pytest.mark.parametrize("kind", [losses.MultiSimilarityLoss, losses.ContrastiveLoss])
@pytest.mark.parametrize("n", [0, 3])
def test_a_list_without_pairs_of_no_candidates(kind, n):
    """A miner that found nothing, in an empty batch or beside an empty reference set."""
    embeddings, none = torch.randn(n, 3, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    loss = kind()(embeddings, None, (none, none, none, none), torch.zeros(0, 3) if n else None, none if n else None)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, embeddings)[0].shape == (n, 3)
