"""The ops by themselves: what the losses do not already try."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import robustdml_ops
from robustdml_ops.ops import AnchorBiases, ConfidenceSets, LabelSets, anchor_loss, anchor_lse, similarity
from robustdml_ops.ops.library import anchor_loss_op, anchor_lse_op, anchor_sweep_op

B, C, D = 6, 11, 5


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    matrices = [torch.randn(n, D, generator=generator, dtype=dtype, requires_grad=True) for n in (B, C)]
    vectors = [torch.rand(n, generator=generator, dtype=dtype, requires_grad=True) for n in (B, B, C)]
    return *matrices, *vectors


LABELS = torch.tensor([0, 3, 3, 10, 1, 0])


def direct(X, P, positive_bias, negative_bias, anchor_bias, alpha):
    """Both sums as they are written."""
    s = similarity(P, X)
    positive = torch.arange(C)[:, None] == LABELS
    e_positive = torch.exp(-alpha * s + positive_bias) * positive
    e_negative = torch.exp(alpha * s + negative_bias + anchor_bias[:, None]) * ~positive
    return torch.log1p(e_positive.sum(1)), torch.log1p(e_negative.sum(1))


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_anchor_lse_with_every_bias(backend):
    tensors = inputs()
    X, P, *biases = tensors
    ours = anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(*biases), alpha=4.0, backend=backend)
    theirs = direct(*tensors, 4.0)
    upstream = (torch.linspace(-1, 1, C, dtype=torch.float64), torch.linspace(2, 1, C, dtype=torch.float64))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    for mine, other in zip(*(torch.autograd.grad(r, tensors, upstream) for r in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_biases_in_any_layout(backend):
    X, P, *_ = inputs()
    expanded, strided = torch.tensor(0.7).double().expand(B), torch.rand(3 * C).double()[::3]
    ours = anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(expanded, expanded, strided), alpha=4.0, backend=backend)
    theirs = direct(X, P, expanded, expanded, strided, 4.0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_the_two_results_may_go_unused(used):
    tensors = inputs()
    X, P, *biases = tensors
    ours = anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(*biases), alpha=4.0)[used].sum()
    theirs = direct(*tensors, 4.0)[used].sum()
    gradients = (torch.autograd.grad(loss, tensors, allow_unused=True) for loss in (ours, theirs))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, torch.zeros_like(mine) if other is None else other)


def test_anchor_loss_is_the_weighted_sum_of_anchor_lse():
    tensors = inputs()
    X, P, *biases = tensors
    sets, scales = LabelSets.of(LABELS), (torch.tensor(0.3).double(), torch.tensor(1.7).double())
    lse = anchor_lse(X, P, sets, AnchorBiases(*biases), alpha=4.0)
    summed = scales[0] * lse.positive.sum() + scales[1] * lse.negative.sum()
    at_once = anchor_loss(X, P, sets, AnchorBiases(*biases), *scales, alpha=4.0)
    torch.testing.assert_close(at_once, summed)
    for mine, other in zip(*(torch.autograd.grad(2 * r, tensors) for r in (at_once, summed)), strict=True):
        torch.testing.assert_close(mine, other)


def test_similarity():
    X, P, *_ = inputs()
    torch.testing.assert_close(similarity(X, P), torch.nn.functional.cosine_similarity(X[:, None], P[None], dim=2))
    assert torch.autograd.gradcheck(similarity, (X, P))
    X = X.detach().clone().index_fill_(0, torch.tensor([1]), 0.0).requires_grad_()
    similarity(X, P).sum().backward()
    assert not X.grad[1].any()
    assert torch.isfinite(X.grad).all()
    with pytest.raises(ValueError, match="proxies must have 5 columns"):
        similarity(X, torch.ones(3, 4))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_alpha_must_be_positive(alpha):
    X, P, *biases = inputs()
    with pytest.raises(ValueError, match="alpha must be positive"):
        anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(*biases), alpha=alpha)


def test_biases_must_fit():
    X, P, positive, negative, anchor = inputs()
    with pytest.raises(ValueError, match=r"biases.negative must be a floating-point vector of length 6"):
        anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(positive, negative[:3], anchor), alpha=1.0)
    with pytest.raises(ValueError, match=r"biases.positive must be of the compute type torch.float64"):
        anchor_lse(X, P, LabelSets.of(LABELS), AnchorBiases(positive.float(), negative, anchor), alpha=1.0)


SETS = {
    "labels": (LABELS, None, None, None, None, 0.0, 0.0),
    "confidences": (None, torch.rand(C, B).double().t(), None, None, None, 100.0, 0.1),
    "factors": (None, None, torch.randn(B, 3).double(), torch.randn(C, 3).double(), torch.randn(C).double(), 9.0, 0.5),
}


@pytest.mark.parametrize("sets", SETS)
def test_registered_ops_keep_the_contract_of_the_registry(sets):
    tensors, scale = inputs(), torch.tensor(0.5).double()
    settings = (*SETS[sets], 4.0, "auto")
    torch.library.opcheck(anchor_lse_op, (*tensors, *settings))
    torch.library.opcheck(anchor_loss_op, (*tensors, scale, scale, *settings, [True] * 5))
    detached = [tensor.detach() for tensor in tensors]
    only_embeddings = (tensors[0], *detached[1:4], None)
    torch.library.opcheck(anchor_loss_op, (*only_embeddings, scale, scale, *settings, [True, *[False] * 4]))
    torch.library.opcheck(anchor_sweep_op, (*detached, scale, scale, *settings, [True] * 4))
    torch.library.opcheck(anchor_sweep_op, (*detached, None, None, *settings, [True, False, False, False]))


def test_confidences_of_another_type_are_cast_chunk_by_chunk():
    X, P, positive, negative, _ = (tensor.detach().float() for tensor in inputs())
    confidences = torch.rand(B, C)
    biases = AnchorBiases(positive, negative)
    ours = anchor_lse(X, P, ConfidenceSets(100.0, 0.1, confidences.bfloat16()), biases, alpha=4.0)
    theirs = anchor_lse(X, P, ConfidenceSets(100.0, 0.1, confidences.bfloat16().float()), biases, alpha=4.0)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_examples_in_docstrings_are_true():
    torch.use_deterministic_algorithms(False)  # its NaN filling is not part of any example
    modules = [robustdml_ops, *map(importlib.import_module, _module_names())]
    results = [doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE) for module in modules]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) > 10


def _module_names():
    for module in pkgutil.walk_packages(robustdml_ops.__path__, "robustdml_ops."):
        if not module.ispkg and "_native" not in module.name and "triton" not in module.name:
            yield module.name
