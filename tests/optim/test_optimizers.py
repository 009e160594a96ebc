"""Steps within the sweep against the optimisers of torch and the published row-wise Adagrad, step by step."""

import copy
import itertools
import json
import math
import sys
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from python_ref import row_wise_adagrad
from robustdml_ops import losses
from robustdml_ops.optim import ProxyAdagrad, ProxyAdamW, ProxySGD
from tests.nightly import nightly_but
from tests.storages import Storages
from tests.subprocesses import run_python

B, C, D = 12, 45, 5
DRAWN = {"negative_share": 0.3, "negative_seed": 3}
PER_CLASS = {"per_class": True, "negative_margin": "proxy"}
LOSSES = {
    "proxy-anchor": (losses.ProxyAnchorLoss, "proxies", {}),
    "adaptive": (losses.AdaptiveProxyAnchorLoss, "proxies", {**PER_CLASS, "drop_similar_negatives": "own"}),
    "proxy-nca": (losses.ProxyNCALoss, "proxies", {}),
    "normalized-softmax": (losses.NormalizedSoftmaxLoss, "W", {}),
    "soft-triple": (losses.SoftTripleLoss, "fc", {"centers_per_class": 3}),
}
RULES = [
    (ProxyAdamW, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-4}),
    (ProxySGD, torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    (ProxySGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    (ProxySGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
]


def batch(size=B, dtype=torch.float64):
    return torch.randn(size, D, dtype=dtype, requires_grad=True), torch.randint(C, (size,))


def pair(name="proxy-anchor", backend=None, dtype=torch.float64, **more):
    """A loss, a copy, and the proxies of both."""
    kind, attribute, options = LOSSES[name]
    ours = kind(C, D, backend=backend, **options, **more).to(dtype)
    theirs = copy.deepcopy(ours)
    return ours, theirs, getattr(ours, attribute), getattr(theirs, attribute)


def close(mine, exact, tolerance=1e-12):
    torch.testing.assert_close(mine, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "rule", "torch_rule", "settings"),
    [*((name, *RULES[0]) for name in LOSSES), *(("proxy-anchor", *rule) for rule in RULES[1:])],
)
def test_steps_are_those_of_torch(small_chunks, name, backend, rule, torch_rule, settings):
    """Value, gradients, proxies and moments, with a scheduler, and an empty batch on the way."""
    ours, theirs, P, Q = pair(name, backend)
    fused, plain = rule(ours, **settings), torch_rule([Q], **settings)
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (fused, plain)]
    for size in (B, 1, 0, B):
        X, labels = batch(size)
        Y = X.detach().clone().requires_grad_()
        loss, exact = ours(X, labels), theirs(Y, labels)
        plain.zero_grad()
        loss.backward()
        exact.backward()
        for optimizer in (fused, plain, *schedulers):
            optimizer.step()
        close(loss, exact)
        close(X.grad, Y.grad)
        close(P, Q)
    assert P.grad is None
    moments = [name for name in fused.moment_names if plain.state[Q].get(name) is not None]
    assert {*moments} == fused.state[P].keys() - {"step"}
    close([fused.state[P][name] for name in moments], [plain.state[Q][name] for name in moments])
    others = ([p.grad for p in loss.parameters() if p not in {P, Q}] for loss in (ours, theirs))
    close(*others)


@pytest.mark.parametrize("radians", [False, True])
@pytest.mark.parametrize(
    ("name", "weight_decay", "drawn"),
    [
        *((name, 0.1, {}) for name in LOSSES),
        *((name, 0.0, DRAWN) for name in ("proxy-anchor", "soft-triple")),
    ],
)
def test_adagrad_is_the_published_one(small_chunks, name, backend, weight_decay, drawn, radians):
    """And without weight decay a gradient of 0, of rows that were not drawn, is no step."""
    ours, theirs, P, Q = pair(name, backend, **drawn)
    settings = {"lr": 0.1, "eps": 1e-3, "weight_decay": weight_decay, "radians": radians}
    optimizer = ProxyAdagrad(ours, initial_accumulator_value=0.01, **settings)
    rows = theirs._class_matrix().detach().clone()
    total = torch.full((len(rows),), 0.01, dtype=torch.float64)
    for _ in range(3):
        X, labels = batch()
        Q.grad = None
        theirs(X, labels).backward()
        G = Q.grad if Q.shape == rows.shape else Q.grad.t()
        rows, total = row_wise_adagrad(rows, total, G, **settings)
        ours(X, labels).backward()
        optimizer.step()
        close(ours._class_matrix(), rows)
        close(optimizer.state[P]["sum"], total)
        with torch.no_grad():
            theirs._class_matrix().copy_(rows)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("name", ["proxy-anchor", "normalized-softmax"])
@pytest.mark.parametrize(
    "dtype", nightly_but([torch.float32, torch.bfloat16], [torch.float32, torch.float64, torch.bfloat16])
)
@pytest.mark.parametrize("drawn", [{}, DRAWN], ids=["all", "drawn"])
@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        (ProxyAdamW, {"moments": torch.bfloat16, "seed": 3}),
        (ProxySGD, {"momentum": 0.9, "moments": torch.bfloat16}),
        (ProxyAdamW, {}),
        (ProxySGD, {}),
        (ProxyAdamW, {"moments": torch.bfloat16, "radians": True}),
        (ProxyAdagrad, {"weight_decay": 0.1}),
    ],
)
def test_native_rounds_and_steps_as_eager(small_chunks, name, dtype, rule, settings, drawn):
    """What is bfloat16 takes the same random bits, which belong to places in the matrix of all classes."""
    native, eager, P, Q = pair(name, "native", dtype, **drawn)
    eager.backend = "eager"
    one, other = (rule(loss, lr=0.01, **settings) for loss in (native, eager))
    for _ in range(3):
        X, labels = batch(dtype=torch.promote_types(dtype, torch.float32))  # whose products are not rounded
        for loss, optimizer in ((native, one), (eager, other)):
            loss(X, labels).backward()
            optimizer.step()
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    if dtype == torch.bfloat16:
        assert (P == Q).double().mean() > 0.95
    if "moments" in settings:
        tolerance = 2e-2
        moments = [optimizer.state[p][one.moment_names[0]] for optimizer, p in ((one, P), (other, Q))]
        assert moments[0].dtype == torch.bfloat16
        # Sums in another order may fall on the other side of a rounding, rarely.
        assert (moments[0] == moments[1]).double().mean() > (0.999 if dtype == torch.float64 else 0.95)
    close(P, Q, tolerance)


@pytest.mark.usefixtures("native")
def test_native_sweeps_take_the_step_themselves(monkeypatch):
    """On the CPU no chunk of proxies comes back to Python."""
    from robustdml_ops.optim.step import ProxyStep

    monkeypatch.setattr(ProxyStep, "take", lambda *_: pytest.fail("a step in Python"))
    for name, dtype in itertools.product(LOSSES, (torch.float32, torch.bfloat16)):
        loss, *_ = pair(name, "native", dtype)
        optimizer = ProxyAdamW(loss)
        loss(*batch(dtype=dtype)).backward()
        optimizer.step()


def test_random_rounding_is_right_in_the_mean_and_repeats(backend):
    """Second moments below half of a last digit's change keep growing; and a seed gives the same bits."""

    def second_moments(seed, moments=torch.bfloat16):
        torch.manual_seed(1)
        loss = losses.ProxyAnchorLoss(400, 16, backend=backend)
        optimizer = ProxyAdamW(loss, lr=0.0, seed=seed, moments=moments)
        X, labels = torch.randn(64, 16), torch.randint(400, (64,))
        for _ in range(40):
            loss(X, labels).backward()
            optimizer.step()
        return optimizer.state[loss.proxies]["exp_avg_sq"]

    rounded, again, other = map(second_moments, (0, 0, 1))
    exact = second_moments(0, torch.float32)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, again)
    assert not torch.equal(rounded, other)
    ratio = float(rounded.double().sum() / exact.double().sum())
    assert abs(ratio - 1) < 5e-3  # to the nearest: a few percent below


def test_groups_have_settings_of_their_own_and_closures_run_first():
    first, copy_of_first, P, Q = pair()
    second, copy_of_second, R, S = pair("normalized-softmax")
    fused = ProxyAdamW([{"loss": first, "lr": 0.1}, second], lr=0.2)
    plain = torch.optim.AdamW([{"params": [Q], "lr": 0.1}, {"params": [S]}], lr=0.2)
    X, labels = batch()

    def closure():
        loss = first(X, labels) + second(X, labels)
        loss.backward()
        return loss

    value = fused.step(closure)
    exact = copy_of_first(X, labels) + copy_of_second(X, labels)
    exact.backward()
    plain.step()
    close(value, exact)
    close(P, Q)
    close(R, S)
    assert [group["lr"] for group in fused.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("moments", "dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_a_run_that_is_loaded_goes_on_as_it_was(tmp_path, moments, dtype):
    def steps(loss, optimizer, count, seed):
        torch.manual_seed(seed)
        for _ in range(count):
            loss(*batch(dtype=torch.float32)).backward()
            optimizer.step()

    whole, parts, P, Q = pair(dtype=dtype)
    optimizer = ProxyAdamW(whole, lr=0.1, moments=moments, seed=5)
    steps(whole, optimizer, 3, 7)
    torch.save({"loss": whole.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run")
    steps(whole, optimizer, 3, 8)

    saved = torch.load(tmp_path / "run", weights_only=True)
    parts.load_state_dict(saved["loss"])
    loaded = ProxyAdamW(parts, lr=0.3, moments=moments)
    loaded.load_state_dict(saved["optimizer"])
    assert loaded.param_groups[0]["lr"] == 0.1
    steps(parts, loaded, 3, 8)
    assert torch.equal(P, Q)
    assert (Q.dtype, loaded.state[Q]["exp_avg"].dtype) == (dtype, moments)


def test_states_of_torch_are_loaded_and_back():
    ours, theirs, P, Q = pair()
    plain = torch.optim.AdamW([Q], lr=0.1)
    X, labels = batch()
    theirs(X, labels).backward()
    plain.step()
    fused = ProxyAdamW(ours)
    with torch.no_grad():
        P.copy_(Q)
    fused.load_state_dict(plain.state_dict())
    fused.param_groups[0].update(lr=0.1)
    ours(X, labels).backward()
    fused.step()
    plain.zero_grad()
    theirs(X, labels).backward()
    plain.step()
    close(P, Q)
    torch.optim.AdamW([Q]).load_state_dict(fused.state_dict())


def test_a_momentum_that_is_set_or_loaded_later_is_that_of_torch():
    ours, theirs, P, Q = pair("normalized-softmax")
    fused, plain = ProxySGD(ours, lr=0.1), torch.optim.SGD([Q], lr=0.1)

    def steps(optimizers, **settings):
        X, labels = batch()
        for optimizer, loss in optimizers:
            optimizer.param_groups[0].update(settings)
            optimizer.zero_grad()
            loss(X, labels).backward()
            optimizer.step()

    both = [(fused, ours), (plain, theirs)]
    for momentum in (0, 0.9, 0.9, 0, 0.5):
        steps(both, momentum=momentum)
    close(P, Q)
    for state in (fused.state_dict(), plain.state_dict()):
        other, another, R, S = pair("normalized-softmax")
        loaded, expected = ProxySGD(other, lr=0.1), torch.optim.SGD([S], lr=0.1)
        loaded.load_state_dict(state)
        expected.load_state_dict(copy.deepcopy(plain.state_dict()))
        for _ in range(2):
            steps([(loaded, other), (expected, another)])
        close(R, S)
        assert loaded.param_groups[0]["momentum"] == 0.5


def test_a_momentum_that_no_step_has_had_yet_is_loaded():
    """Of this package and of torch's optimiser, before and after steps without a momentum."""
    ours, theirs, _, Q = pair("normalized-softmax")
    both = [(ProxySGD(ours, lr=0.1), ours), (torch.optim.SGD([Q], lr=0.1), theirs)]
    for stepped in (False, True):
        for optimizer, loss in both:
            optimizer.param_groups[0]["momentum"] = 0.0
            if stepped:
                optimizer.zero_grad()
                loss(*batch()).backward()
                optimizer.step()
            optimizer.param_groups[0]["momentum"] = 0.9
        for saved, _ in both:
            other, another, R, S = pair("normalized-softmax")
            loaded, expected = ProxySGD(other, lr=0.3, momentum=0.5), torch.optim.SGD([S], lr=0.3)
            other(*batch()).backward()
            loaded.step()  # its momentum does not stay
            with torch.no_grad():
                R.copy_(S)
            loaded.load_state_dict(saved.state_dict())
            expected.load_state_dict(copy.deepcopy(both[1][0].state_dict()))
            for _ in range(2):
                X, labels = batch()
                for optimizer, loss in ((loaded, other), (expected, another)):
                    optimizer.zero_grad()
                    loss(X, labels).backward()
                    optimizer.step()
            close(R, S)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_distributed_checkpoints_hold_it(tmp_path, dtype):
    options = {"checkpoint_id": tmp_path, "no_dist": True}
    ours, theirs, P, Q = pair(dtype=dtype)
    saved, loaded = ProxyAdamW(ours, lr=0.1), ProxyAdamW(theirs, lr=0.3)
    ours(*batch(dtype=dtype)).backward()
    saved.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own deprecations
        dcp.save({"loss": ours.state_dict(), "optimizer": get_optimizer_state_dict(ours, saved)}, **options)
        state = {"loss": theirs.state_dict(), "optimizer": get_optimizer_state_dict(theirs, loaded)}
        dcp.load(state, **options)
        set_optimizer_state_dict(theirs, loaded, state["optimizer"])
    assert loaded.param_groups[0]["lr"] == 0.1
    assert torch.equal(P, Q)
    assert Q.dtype == dtype
    torch.testing.assert_close(loaded.state[Q], saved.state[P], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["proxy-anchor", "normalized-softmax"])
def test_no_gradient_of_the_size_of_the_proxies_exists(small_chunks, name, backend):
    ours, theirs, P, Q = pair(name, backend)
    optimizer = ProxyAdamW(ours)
    for loss, parameter, bound in ((ours, P, True), (theirs, Q, False)):
        X, labels = batch(4)
        loss(X, labels).backward()  # whose look at the values takes C numbers
        optimizer.step() if bound else None
        with Storages([parameter, *optimizer.state[P].values()]) as storages:
            loss(X, labels).backward()
        assert (storages.largest < P.nbytes) == bound
        optimizer.abandon()


@pytest.mark.nightly
@pytest.mark.usefixtures("native")
@pytest.mark.skipif(sys.platform != "linux", reason="measured by /proc")
def test_memory_beyond_proxies_and_moments_does_not_grow_with_the_classes():
    """In a process of its own; a gradient of all proxies would be 51 MB."""
    run = run_python("-m", "bench.optimizer_steps", "256", "200000", "64", OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["beyond_mb"] < 32


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("length", [1e-2, 1.0, 30.0])
def test_radians_are_the_angle_of_the_first_step(name, length, backend):
    """Whatever the length of the rows, which other rates depend on."""
    loss = pair(name, backend)[0]
    with torch.no_grad():
        loss._class_matrix().copy_(length * torch.nn.functional.normalize(loss._class_matrix(), dim=1))
    before = loss._class_matrix().detach().clone()
    optimizer = ProxyAdagrad(loss, lr=0.05, radians=True)
    loss(*batch()).backward()
    optimizer.step()
    moved = (before != loss._class_matrix()).any(1)
    angles = torch.cosine_similarity(before, loss._class_matrix().detach()).clamp(max=1).acos()[moved]
    assert len(angles)
    close(angles, torch.full_like(angles, math.atan(0.05)), 2e-3)  # ε


def test_a_state_from_before_radians_is_read():
    loss, other, _, _ = pair()
    state = ProxyAdagrad(loss, lr=0.05).state_dict()
    del state["param_groups"][0]["radians"]
    optimizer = ProxyAdagrad(other, lr=0.05, radians=True)
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["radians"] is False
