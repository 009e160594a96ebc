"""Backward from the terms that forward saved, on the CPU as on a GPU, against the reference."""

import math
from functools import partial

import pytest
import torch

from python_ref import class_log_sum_exp, cosine_similarity
from robustdml_ops.ops import ELSEWHERE, class_lse
from robustdml_ops.ops.classes import sweep
from tests.classes.test_class_lse import WANTS, Case
from tests.classes.test_class_lse import assert_close as assert_within


@pytest.fixture
def completed(monkeypatch):
    """Shapes of the terms from which a backward took its gradients."""
    shapes, complete = [], sweep.complete

    def spy(similarities, E, *rest):
        shapes.append(tuple(E.shape))
        return complete(similarities, E, *rest)

    monkeypatch.setattr(sweep, "bytes_to_save", lambda device: math.inf)
    monkeypatch.setattr(sweep, "complete", spy)
    return shapes


assert_close = partial(assert_within, tolerance=1e-7)


OPTIONS = [
    {},
    {"scale": 64.0},
    {"scale": -20.0},
    {"scale": 0.0},
    {"scale": 20.0, "exclude_target": True, "target_bias": 5.0},
    {"scale": 8.0, "target_bias": -2.0},
    {"scale": 8.0, "target_bias": 300.0},
    {"scale": 8.0, "drop_similar_negatives": 0.2},
]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("shape", [(33, 45, 9), (1, 2, 3), (5, 1, 4), (70, 300, 8)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_any_upstream_gradient(options, shape, completed):
    case = Case(*shape, **options)
    of_lse, of_target = case.upstream
    of_lse[1:3] = of_target[1:2] = of_target[3:4] = 0  # a weight of 0; the label's logit alone; no part of its own
    assert_close(case.run(class_lse, backend="eager"), case.run(class_log_sum_exp))
    assert completed == [(shape[1], shape[0])]


@pytest.mark.parametrize("sign", [1, -1])
def test_samples_at_all_proxies_and_opposite_to_them(sign, completed):
    """The largest and the least terms that a scale of 64 allows."""
    case = Case(6, 40, 5, scale=64.0, exclude_target=True)
    case.proxies = case.proxies[:1] + 1e-3 * case.proxies
    case.embeddings = sign * case.proxies[:6] + 1e-3 * case.embeddings
    ours, exact = case.run(class_lse, backend="eager", dtype=torch.float32), case.run(class_log_sum_exp)
    for mine, truth in zip(ours[2:], exact[2:], strict=True):
        assert (mine - truth).abs().max() <= 1e-3 * truth.abs().max()
    assert completed


@pytest.mark.parametrize("want", WANTS[1:])
def test_one_gradient_alone(want, completed):
    case = Case(9, 12, 6, scale=8.0)
    assert_close(case.run(class_lse, want=want, backend="eager"), case.run(class_log_sum_exp, want=want))
    assert completed


def test_a_second_backward_with_another_upstream_gradient(completed):
    case = Case(9, 12, 6, scale=8.0)
    X, P = case.embeddings.requires_grad_(), case.proxies.requires_grad_()
    ours = class_lse(X, P, case.labels, scale=8.0, backend="eager")
    exact = class_log_sum_exp(X, P, case.labels, scale=8.0)
    for dlse, dtarget in (case.upstream, case.upstream[::-1]):
        found, expected = (
            torch.autograd.grad(result, (X, P), (dlse, dtarget), retain_graph=True) for result in (ours, exact)
        )
        assert_close(found, expected)
    assert len(completed) == 2


def test_labels_in_another_shard(completed):
    """Their samples are negatives of all classes here."""
    case = Case(9, 12, 6, scale=8.0)
    elsewhere = torch.arange(9) % 3 == 0
    labels = torch.where(elsewhere, ELSEWHERE, case.labels)
    X, P = case.embeddings.requires_grad_(), case.proxies.requires_grad_()
    lse, target = class_lse(X, P, labels, scale=8.0, elsewhere=True, backend="eager")
    S = cosine_similarity(X, P)
    expected = (8 * S).logsumexp(1), 8 * S.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    weight = case.upstream[1].masked_fill(elsewhere, 0)
    ours = torch.autograd.grad((lse * case.upstream[0]).sum() + (target[~elsewhere] * weight[~elsewhere]).sum(), (X, P))
    exact = torch.autograd.grad((expected[0] * case.upstream[0]).sum() + (expected[1] * weight).sum(), (X, P))
    assert_close(ours, exact)
    assert completed


def test_a_graph_of_the_gradient_takes_none(completed):
    case = Case(6, 9, 5, scale=8.0)
    X, P = case.embeddings.requires_grad_(), case.proxies.requires_grad_()
    found, before = [], []
    for function, options in ((class_lse, {"backend": "eager"}), (class_log_sum_exp, {})):
        lse, target = function(X, P, case.labels, scale=8.0, **options)
        gradients = torch.autograd.grad((lse.square() - target).sum(), (X, P), create_graph=True)
        before.append(len(completed))
        found.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), (X, P)))
    assert_close(*found)
    assert before[0] == 0


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 64.5},
        {"scale": torch.tensor(8.0).double()},
        {"bias": torch.zeros(12).double()},
        {"normalize_proxies": False},
        {"pooling": "max"},
        {"backend": "native"},
    ],
    ids=str,
)
def test_no_terms_without_a_bound(options, completed):
    case = Case(9, 12, 6, **{"backend": "eager", **options})
    case.run(class_lse)
    assert not completed


def test_no_terms_without_a_gradient(monkeypatch):
    monkeypatch.setattr(sweep, "terms_buffer", lambda *_: pytest.fail("room was made"))
    class_lse(torch.randn(4, 3), torch.randn(5, 3), torch.arange(4), scale=8.0, backend="eager")
