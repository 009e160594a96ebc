"""Optimisers that step within the sweep: proxies after some steps, beside torch's own or the published formula."""

import copy

import torch
from hypothesis import strategies as st

import python_ref
from robustdml_ops import losses, optim
from tests.fuzz.draws import flags, label_vectors, matrices
from tests.fuzz.oracle import EPSILON, Check
from tests.fuzz.trials.batches import Draw

rates = st.sampled_from([0.0, 1e-3, 0.1])
decays = st.sampled_from([0.0, 0.1])
LOSSES = {
    "proxy-anchor": (losses.ProxyAnchorLoss, {"alpha": 8}),
    "adaptive": (losses.AdaptiveProxyAnchorLoss, {"alpha": 8, "per_class": True}),
    "proxy-nca": (losses.ProxyNCALoss, {}),
    "normalized-softmax": (losses.NormalizedSoftmaxLoss, {"temperature": 0.5}),
    "soft-triple": (losses.SoftTripleLoss, {"centers_per_class": 2, "la": 2.0, "gamma": 1.0}),
    "cosface": (losses.CosFaceLoss, {"scale": 4}),
}


def _steps(draw: Draw, kind: type[optim.ProxyOptimizer], settings: dict, reference) -> Check:
    """``reference`` takes the plain loss's matrix, and gives a function of its gradient that makes the step."""
    name, backend = draw(st.sampled_from(list(LOSSES))), draw(st.sampled_from(["native", "eager"]))
    C, D, dtype = (
        draw(st.integers(1, 20)),
        draw(st.integers(2, 9)),
        draw(st.sampled_from([torch.float32, torch.float64])),
    )
    make, options = LOSSES[name]
    given = [
        (n, draw(matrices(n, D, dtype)), draw(label_vectors(n, C)))
        for n in draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    ]

    def judge() -> None:
        torch.manual_seed(0)
        ours = make(C, D, backend=backend, **options).to(dtype)
        # The reference steps in float64 on gradients of the plain loss there, of which trials of their own judge.
        theirs = copy.deepcopy(ours).double()
        fused, step = kind(ours, **settings), reference(theirs._class_matrix())
        moved = 0.0
        for _, X, labels in given:
            loss = ours(X, labels)
            loss.backward()
            fused.step()
            for p in theirs.parameters():
                p.grad = None
            theirs(X.double(), labels).backward()
            before = theirs._class_matrix().detach().clone()
            with torch.no_grad():
                step()
            moved += float((theirs._class_matrix().detach() - before).abs().max())
        mine, exact = ours._class_matrix().detach().double(), theirs._class_matrix().detach()
        epsilon = EPSILON[dtype]
        # A gradient that is off by ε of its terms, and AdamW's m/√v, which turns a tiny one into a step of η.
        assert torch.isfinite(mine).all()
        off = 2e4 * epsilon * (moved + 1) if epsilon < 1e-10 else 2e-3 * moved + 1e-5
        worst = float((mine - exact).abs().max())
        assert worst <= off, f"proxies are off by {worst:.2e}, allowed {off:.2e}"

    return Check(judge)


def _by_torch(kind: type[torch.optim.Optimizer], settings: dict):
    def reference(matrix: torch.Tensor):
        parameter = matrix if matrix.is_leaf else matrix._base
        optimizer = kind([parameter], **settings)
        return optimizer.step

    return reference


def proxy_adamw(draw: Draw) -> Check:
    settings = {
        "lr": draw(rates),
        "betas": draw(st.sampled_from([(0.9, 0.999), (0.0, 0.5)])),
        "eps": 1e-3,
        "weight_decay": draw(decays),
    }
    return _steps(draw, optim.ProxyAdamW, settings, _by_torch(torch.optim.AdamW, settings))


def proxy_sgd(draw: Draw) -> Check:
    momentum = draw(st.sampled_from([0.0, 0.9]))
    nesterov = momentum > 0 and draw(flags)
    dampening = 0.0 if nesterov or momentum == 0 else draw(st.sampled_from([0.0, 0.3]))
    settings = {
        "lr": draw(rates),
        "momentum": momentum,
        "dampening": dampening,
        "nesterov": nesterov,
        "weight_decay": draw(decays),
    }
    return _steps(draw, optim.ProxySGD, settings, _by_torch(torch.optim.SGD, settings))


def proxy_adagrad(draw: Draw) -> Check:
    start = draw(st.sampled_from([0.0, 0.01]))
    settings = {"lr": draw(rates), "eps": 1e-2, "weight_decay": draw(decays)}

    def reference(matrix: torch.Tensor):
        parameter = matrix if matrix.is_leaf else matrix._base
        total = torch.full((len(matrix),), start, dtype=torch.float64)

        def step() -> None:
            G = parameter.grad if matrix.is_leaf else parameter.grad.t()
            rows, new = python_ref.row_wise_adagrad(matrix.detach(), total, G, **settings)
            matrix.copy_(rows)
            total.copy_(new)

        return step

    return _steps(draw, optim.ProxyAdagrad, {**settings, "initial_accumulator_value": start}, reference)


TRIALS = {"ProxyAdamW": proxy_adamw, "ProxySGD": proxy_sgd, "ProxyAdagrad": proxy_adagrad}
