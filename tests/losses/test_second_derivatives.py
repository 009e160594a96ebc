"""Second derivatives: those of the dense references, or an error; and torch.func, which always asks for a graph."""

import pytest
import torch
from cases import ANCHOR_NAMES, MATRIX_NAMES, NAMES, make_case
from torch.utils.checkpoint import checkpoint

from robustdml_ops.losses import (
    ContrastiveLoss,
    InfoNCELoss,
    MultiSimilarityLoss,
    NTXentLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SupConLoss,
)


def small_case(name, **options):
    if name in MATRIX_NAMES:
        return make_case(name, 9, 11, 4, **options, changed={"alpha": 4.0} if name in ANCHOR_NAMES else {})
    return make_case(name, 9, 4, 4, **options, m=16)


def penalised(loss, inputs):
    """A loss with the squared length of its gradient, as gradient penalties have it."""
    upstream = torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    gradients = torch.autograd.grad(loss, inputs, upstream, create_graph=True)
    return sum(gradient.square().sum() for gradient in gradients)


@pytest.mark.parametrize(("reduction", "weighted"), [("mean", False), ("none", False), ("mean", True)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_chunks")
def test_a_gradient_penalty_is_that_of_the_reference(name, reduction, weighted):
    case = small_case(name, reduction=reduction, weighted=weighted)
    ours = torch.autograd.grad(penalised(case.ours(), case.inputs), case.inputs, allow_unused=True)
    theirs = torch.autograd.grad(penalised(case.reference(), case.inputs), case.inputs, allow_unused=True)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).norm() <= 1e-9 * other.norm()


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpointed_loss_has_the_same_gradients_once_and_twice(name):
    """``torch.utils.checkpoint`` drops what a loss keeps, and gives what it makes again out a single time."""
    case = small_case(name)
    expected, again = case.gradients(case.ours()), case.gradients(checkpoint(case.ours, use_reentrant=False))
    assert all(torch.equal(mine, other) for mine, other in zip(again, expected, strict=True))
    expected = torch.autograd.grad(penalised(case.ours(), case.inputs), case.inputs)
    again = torch.autograd.grad(penalised(checkpoint(case.ours, use_reentrant=False), case.inputs), case.inputs)
    assert all(torch.allclose(mine, other, rtol=1e-12) for mine, other in zip(again, expected, strict=True))


@pytest.mark.parametrize("loss", [MultiSimilarityLoss(epsilon=0.1), ContrastiveLoss(), SupConLoss(), NTXentLoss()])
def test_a_penalty_without_candidates_is_zero(loss):
    X, nothing = torch.randn(3, 2, requires_grad=True), torch.randn(0, 2, requires_grad=True)
    found = loss(X, torch.arange(3), ref_emb=nothing, ref_labels=torch.arange(0))
    assert not torch.autograd.grad(penalised(found, [X, nothing]), X)[0].any()


def test_a_penalty_without_pairs_and_with_negatives_is_zero():
    rows, negatives = torch.randn(0, 2, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    inputs = [rows, negatives]
    penalty = penalised(InfoNCELoss()(rows, torch.randn(0, 2), negatives), inputs)
    assert not torch.autograd.grad(penalty, negatives)[0].any()


LOSSES = {
    "proxy-anchor": lambda: ProxyAnchorLoss(5, 3, alpha=4),
    "proxy-anchor, each": lambda: ProxyAnchorLoss(5, 3, alpha=4, reduction="none"),
    "proxy-nca": lambda: ProxyNCALoss(5, 3),
    "own similarity": lambda: ProxyAnchorLoss(5, 3, alpha=4, drop_similar_negatives="own"),
    "multi-similarity": lambda: MultiSimilarityLoss(2, 5),
    "contrastive": lambda: ContrastiveLoss(0.2, 1.0),
}


@pytest.fixture(params=LOSSES)
def loss(request):
    """A loss of embeddings alone, in float64, and where to differentiate it."""
    module, labels = LOSSES[request.param]().double(), torch.arange(12) % 5
    return lambda X: module(X, labels).sum(), torch.randn(12, 3, dtype=torch.float64)


def test_functional_gradients_once_and_twice_and_a_third_is_refused(loss):
    f, X = loss
    leaf = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
    assert torch.equal(torch.func.grad(f)(X), first)
    (second,) = torch.autograd.grad(first.square().sum(), leaf, create_graph=True)
    assert torch.equal(torch.func.grad(lambda x: torch.func.grad(f)(x).square().sum())(X), second)
    with pytest.raises(RuntimeError, match=r"can be differentiated twice.*robustdml_ops\.python_ref"):
        second.sum().backward()


def test_zero_rows_have_second_derivatives_of_zero_and_cosine_zero_in_those_of_others(loss):
    f, X = loss
    X = X.clone()
    X[2] = 0
    leaf = X.requires_grad_()
    (found,) = torch.autograd.grad(penalised(f(leaf), [leaf]), leaf)
    assert (found[2] == 0).all()
    step = 1e-6 * torch.randn_like(found).index_fill_(0, torch.tensor([2]), 0)
    ends = [(leaf + sign * step).detach().requires_grad_() for sign in (1, -1)]
    above, below = (penalised(f(end), [end]) for end in ends)
    torch.testing.assert_close((found * step).sum(), (above - below) / 2, rtol=1e-5, atol=1e-12)
