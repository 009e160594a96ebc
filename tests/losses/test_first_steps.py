"""Training that changes nothing is told, once, with its cause; training that learns is not disturbed."""

import copy
import re
import warnings
from functools import partial

import pytest
import torch

from robustdml_ops.losses import (
    AdaFaceLoss,
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    first_steps,
)
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW
from robustdml_ops.robust import PRISM

C, D = 40, 16
LOSSES = {
    "proxy-anchor": ProxyAnchorLoss,
    "arcface": partial(ArcFaceLoss, scale=16),
    "soft-triple": partial(SoftTripleLoss, centers_per_class=2),
}


def steps(loss_function, optimizer, number, noise=0.1):
    """Train on clusters, and return what was warned."""
    torch.manual_seed(3)
    means = torch.randn(C, D)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(number):
            labels = torch.randint(C, (24,))
            X = means[labels] + noise * torch.randn(24, D)
            loss = loss_function(X.requires_grad_(), labels)
            if optimizer is not None:
                optimizer.zero_grad()
            loss.backward()
            if optimizer is not None:
                optimizer.step()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", LOSSES)
def test_proxies_that_no_optimiser_has(name):
    loss_function = LOSSES[name](C, D)
    told = steps(loss_function, None, first_steps.UNMOVED + 3)
    assert len(told) == 1
    assert f"100 steps have not moved .{loss_function.matrix_name} of {type(loss_function).__name__}" in told[0]
    assert steps(copy.deepcopy(loss_function), None, 3) == []


class Lion(torch.optim.Optimizer):
    """Writes through ``.data``, which leaves the version of a parameter as it was."""

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad.sign(), alpha=-group["lr"])


OPTIMIZERS = {
    "AdamW": lambda loss_function: torch.optim.AdamW(loss_function.parameters(), 1e-2),
    "fused": lambda loss_function: torch.optim.AdamW(loss_function.parameters(), 1e-2, fused=True),
    "in the sweep": lambda loss_function: ProxyAdamW(loss_function, lr=1e-2),
    "through .data": lambda loss_function: Lion(loss_function.parameters(), {"lr": 1e-2}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_that_learns_is_silent(name):
    loss_function = ArcFaceLoss(C, D, scale=16)
    assert steps(loss_function, OPTIMIZERS[name](loss_function), 320) == []
    assert loss_function.first_steps.over


def test_frozen_proxies_are_meant():
    assert steps(ProxyNCALoss(C, D, 8).requires_grad_(False), None, first_steps.UNMOVED + 1) == []


@pytest.mark.parametrize(
    ("kind", "rate", "cause"),
    [
        (partial(ProxyNCALoss, softmax_scale=0.5), 1e-2, "It cannot fall below 2.73, .* take a scale of 8 or more"),
        (partial(CosFaceLoss, scale=64), 1e-6, "Look at the learning rates, that of .W"),
    ],
)
def test_a_loss_that_stays_names_its_cause(kind, rate, cause):
    """Labels by chance are nothing to learn from; the rate moves rows of float32, but too little."""
    loss_function = kind(C, D)
    last = first_steps.STEPS + first_steps.SIGHTINGS * C // 24
    told = steps(loss_function, torch.optim.SGD(loss_function.parameters(), rate), last + 1, noise=30.0)
    assert len(told) == 1
    assert f"after {last} steps the loss of {type(loss_function).__name__} is" in told[0]
    assert re.search(cause, told[0])


MANY = {
    "proxy-anchor": partial(ProxyAnchorLoss, negative_share=0.01),
    "arcface": partial(ArcFaceLoss, scale=16, margin=5, negative_share=0.01),
    "soft-triple": partial(SoftTripleLoss, centers_per_class=2, negative_share=0.01),
}


def train_many(loss_function, classes, number=first_steps.EARLY + 1):
    """Steps on clusters of so many classes that most are never met again; what was warned."""
    optimizer = ProxyAdagrad(loss_function, lr=0.05)
    generator = torch.Generator().manual_seed(7)
    means = torch.randn(classes, D, generator=generator)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(number):
            labels = torch.randint(classes, (24,), generator=generator)
            X = means[labels] + 0.1 * torch.randn(24, D, generator=generator)
            loss_function(X.requires_grad_(), labels).backward()
            optimizer.step()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", MANY)
def test_random_proxies_of_very_many_classes_are_told_early(name):
    told = train_many(MANY[name](100_000, D), 100_000)
    assert len(told) == 1
    assert re.search(r"after 220 steps of \w+ samples are nearer .* in [45]\d % of cases.*start_class_matrix", told[0])


def train_pairs(unlearning, classes=100_000, number=first_steps.EARLY + 1):
    """Steps on pairs of clusters, whose proxies begin as embeddings, and whose noise may grow; what was warned."""
    loss_function = MANY["arcface"](classes, D, first_embeddings=1)
    optimizer = ProxyAdagrad(loss_function, lr=0.05)
    generator = torch.Generator().manual_seed(7)
    means = torch.randn(classes, D, generator=generator)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(number):
            labels = torch.randint(classes, (24,), generator=generator).repeat_interleave(2)
            noise = 0.7 + unlearning * step / number
            X = means[labels] + noise * torch.randn(48, D, generator=generator)
            loss_function(X.requires_grad_(), labels).backward()
            optimizer.step()
    return [str(one.message) for one in caught]


def test_retrieval_that_falls_within_batches_is_told():
    told = train_pairs(0.4)
    assert len(told) == 1
    assert re.search(r"after 220 steps of ArcFaceLoss fewer samples than in the first 20 .* by \d+ points", told[0])
    assert train_pairs(0.0) == []


@pytest.mark.parametrize("name", MANY)
def test_many_classes_that_are_learnt_are_not(name):
    assert train_many(MANY[name](50, D), 50) == []


@pytest.mark.parametrize("name", MANY)
def test_proxies_that_begin_as_embeddings_are_not(name):
    assert train_many(MANY[name](100_000, D, first_embeddings=1), 100_000) == []


@pytest.mark.parametrize(
    "kind", [ProxyNCALoss, NormalizedSoftmaxLoss, partial(CosFaceLoss, scale=16), partial(AdaFaceLoss, scale=16)]
)
def test_the_loss_of_untrained_rows(kind):
    """At right angles, as random rows in many dimensions nearly are; and on the class."""
    loss_function = kind(C, 64).double().eval()
    basis = torch.eye(64, dtype=torch.float64)
    matrix = next(loss_function.parameters())
    matrix.data = basis[:C] if matrix.shape[0] == C else basis[:, :C].contiguous()
    for cosine, X in ((0.0, basis[-1:]), (1.0, basis[:1])):
        found = float(loss_function(X, torch.tensor([0])).detach())
        expected = loss_function.loss_at(cosine)
        assert found == pytest.approx(expected, rel=0.05), cosine


def test_a_filter_that_is_never_given_a_row():
    prism = PRISM(C, D, "average", 0.3, memory_size=64)
    X, labels = torch.randn(8, D), torch.arange(8)
    for _ in range(49):
        prism(X, labels)
    with pytest.warns(UserWarning, match=r"50 batches were judged, .* call enqueue\(embeddings, labels, result.keep\)"):
        prism(X, labels)
    prism(X, labels)
    other = PRISM(C, D, "average", 0.3, memory_size=64)
    for _ in range(60):
        keep = other(X, labels).keep
        other.enqueue(X, labels, keep)


@pytest.mark.parametrize("call", [1, first_steps.EARLY - 1, first_steps.UNMOVED])
def test_a_step_within_a_capture_copies_nothing_to_the_host(call, monkeypatch):
    """Its graph would repeat the copy; the question stays open until a later step."""
    loss_function = ProxyAnchorLoss(C, D)
    steps(loss_function, None, call - 1)
    monkeypatch.setattr(first_steps, "is_recorded", lambda device: device.type == "cpu")
    known = dict(vars(loss_function.first_steps))
    steps(loss_function, None, 1)
    assert vars(loss_function.first_steps) == known
