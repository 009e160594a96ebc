"""Planned steps of a GPU against float64, and against the general way of the same kernels."""

from functools import partial

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.backends import dispatch, self_check
from robustdml_ops.engine import gpu_plan
from robustdml_ops.engine.gpu_plan import GpuPlan
from robustdml_ops.ops.classes import gpu_plan as class_gpu_plan
from tests.triton_here import DEVICE, MARKS

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice|divide):RuntimeWarning")]
pytestmark.append(pytest.mark.filterwarnings("ignore:.*an optimiser that rounds to the nearest:UserWarning"))
B, C, D = 33, 70, 24
F64 = torch.float64
KINDS = {
    "Proxy-Anchor": losses.ProxyAnchorLoss,
    "Proxy-Anchor, steep": partial(losses.ProxyAnchorLoss, alpha=500.0, margin=0.3),
    "softmax": losses.NormalizedSoftmaxLoss,
    "Proxy-NCA": losses.ProxyNCALoss,
    "Proxy-NCA, without the positive": partial(losses.ProxyNCALoss, include_positive=False),
    "CosFace": partial(losses.CosFaceLoss, scale=32.0),
    "ArcFace": losses.ArcFaceLoss,
    "ArcFace, a large margin": partial(losses.ArcFaceLoss, margin=120.0, scale=10.0),
    "ArcFace, margins of classes": lambda C, D, **backend: losses.ArcFaceLoss(C, D, 80 * torch.rand(C), **backend),
    "AdaFace": partial(losses.AdaFaceLoss, scale=32.0),
    "AdaFace, a large margin": partial(losses.AdaFaceLoss, scale=10.0, margin=1.4, concentration=100.0),
}
WEIGHTS = {
    "none": lambda: None,
    "bool": lambda: torch.rand(B) > 0.3,
    "float": lambda: torch.rand(B) * (torch.rand(B) > 0.3),
}


@pytest.fixture(autouse=True)
def room_for_terms(monkeypatch):
    monkeypatch.setattr(class_gpu_plan, "bytes_to_save", lambda _: 1 << 30)


@pytest.fixture(params=["one chunk", "chunks"])
def chunks(request, monkeypatch):
    if request.param == "chunks":
        monkeypatch.setattr(gpu_plan, "chunk_rows", lambda *_: 16)


def inputs(kind, backend="triton", dtype=torch.float32, weights="none", device=DEVICE, seed=0):
    """A loss, embeddings with a zero row, labels and weights; the same numbers in every type."""
    torch.manual_seed(seed)
    loss_function = KINDS[kind](C, D, backend=backend).to(device, dtype)
    (parameter,) = loss_function.parameters()
    parameter.data.view(-1)[:3] = 0
    X = torch.randn(B, D)
    X[4] = 0
    y, w = torch.randint(C, (B,)), WEIGHTS[weights]()
    return (
        loss_function,
        X.to(device, dtype).requires_grad_(),
        y.to(device),
        None if w is None else w.to(device, dtype if w.is_floating_point() else w.dtype),
    )


def step(loss_function, X, y, w, upstream=1.0):
    loss = loss_function(X, y, sample_weights=w)
    (upstream * loss).backward()
    (parameter,) = loss_function.parameters()
    return [loss.detach(), X.grad, parameter.grad]


def the_plan(loss_function):
    (plan,) = loss_function._plans.known.values()
    return plan


def error(ours, exact):
    return float((ours.cpu().double() - exact).norm() / exact.norm())


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_as_exact_as_the_general_way(kind, weights, monkeypatch):
    upstream = {"none": 1.0, "bool": 0.3, "float": -2.0}[weights]
    exact = step(*inputs(kind, "eager", F64, weights, device="cpu"), upstream)
    given = inputs(kind, weights=weights)
    ours = step(*given, upstream)
    assert isinstance(the_plan(given[0]), GpuPlan)
    monkeypatch.setattr(GpuPlan, "run", None)
    given = inputs(kind, weights=weights)
    monkeypatch.setattr(type(given[0]), "_plan", lambda *_: None)
    general = step(*given, upstream)
    assert the_plan(given[0]) is None
    for name, one, other, right in zip(("loss", "dX", "dP"), ours, general, exact, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        assert error(one, right) <= 1.5 * error(other, right) + 2e-7, name


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("kind", ["CosFace", "ArcFace", "ArcFace, margins of classes"])
def test_margins_of_samples(kind):
    margins, found = torch.rand(B) * (1.0 if kind == "CosFace" else 60.0), []
    for backend, dtype, device in (("triton", torch.float32, DEVICE), ("eager", F64, "cpu")):
        loss_function, X, y, _ = inputs(kind, backend, dtype, device=device)
        loss = loss_function(X, y, margins=margins.to(device))
        found.append([loss.detach(), *torch.autograd.grad(loss, (X, loss_function.W))])
        if backend == "triton":
            assert isinstance(the_plan(loss_function), GpuPlan)
    for ours, exact in zip(*found, strict=True):
        assert error(ours, exact) < 5e-6


@pytest.mark.parametrize("near", [-1.0, 1.0])
@pytest.mark.parametrize("kind", ["ArcFace", "AdaFace"])
def test_samples_in_line_with_their_class(kind, near):
    """Cosines of ±1, where the angle has no derivative."""
    found = []
    for backend in ("triton", "eager"):
        loss_function, *_ = inputs(kind, backend)
        X = torch.eye(D, device=DEVICE).requires_grad_()
        loss_function.W.data[:, :D] = near * torch.eye(D, device=DEVICE)
        loss = loss_function(X, torch.arange(D, device=DEVICE))
        found.append([loss.detach(), *torch.autograd.grad(loss, (X, loss_function.W))])
    for ours, general in zip(*found, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, general, rtol=2e-4, atol=1e-5)


@pytest.mark.usefixtures("chunks")
def test_proxy_anchor_in_float64():
    exact = step(*inputs("Proxy-Anchor", "eager", F64, "float", device="cpu"))
    given = inputs("Proxy-Anchor", dtype=F64, weights="float")
    ours = step(*given)
    assert isinstance(the_plan(given[0]), GpuPlan)
    for one, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(one.cpu(), right, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
def test_types_of_the_gradients(kind):
    """Half-precision matrices beside float32, and proxies by columns."""
    exact = step(*inputs(kind, "eager", F64, device="cpu"))
    for of_X, of_P in ((torch.float16, torch.float32), (torch.float32, torch.bfloat16)):
        loss_function, X, y, _ = inputs(kind)
        (parameter,) = loss_function.to(of_P).parameters()
        parameter.data = parameter.data.t().contiguous().t()
        X = X.detach().to(of_X).requires_grad_()
        _, dX, dP = step(loss_function, X, y, None)
        assert isinstance(the_plan(loss_function), GpuPlan)
        assert (dX.dtype, dP.dtype, dP.stride()) == (of_X, of_P, parameter.stride())
        assert error(dX, exact[1]) < 0.02
        assert error(dP, exact[2]) < 0.02


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_one_gradient_alone(kind, wanted):
    both = step(*inputs(kind))
    loss_function, X, y, w = inputs(kind)
    (parameter,) = loss_function.parameters()
    X.requires_grad_(wanted[0]), parameter.requires_grad_(wanted[1])
    one = step(loss_function, X, y, w)
    assert the_plan(loss_function).wanted == wanted
    for gradient, other, want in zip(one[1:], both[1:], wanted, strict=True):
        assert torch.equal(gradient, other) if want else gradient is None


@pytest.mark.parametrize(
    "kind", ["Proxy-Anchor", "softmax", "ArcFace, margins of classes", "Proxy-NCA, without the positive"]
)
def test_a_second_backward_and_second_derivatives(kind):
    found = []
    for backend, dtype, device in (("triton", torch.float32, DEVICE), ("eager", F64, "cpu")):
        loss_function, X, y, w = inputs(kind, backend, dtype, "float", device)
        matrices = (X, *loss_function.parameters())
        loss = loss_function(X, y, sample_weights=w)
        again = [torch.autograd.grad(loss, matrices, retain_graph=True) for _ in range(2)]
        first = torch.autograd.grad(loss, matrices, create_graph=True)
        second = torch.autograd.grad(sum((gradient**2).sum() for gradient in first), matrices)
        found.append([*again[0], *again[1], *first, *second])
    for ours, exact in zip(*found, strict=True):
        assert error(ours.detach(), exact.detach()) < 2e-5


@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax", "ArcFace", "AdaFace"])
@pytest.mark.parametrize("where", ["embeddings", "proxies"])
def test_nan_reaches_the_loss(kind, where):
    loss_function, X, y, _ = inputs(kind)
    (parameter,) = loss_function.parameters()
    (X if where == "embeddings" else parameter).data[5, 5] = torch.nan
    assert loss_function(X, y).isnan()
    assert isinstance(the_plan(loss_function), GpuPlan)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a device-side assertion ends the process")
@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
@pytest.mark.parametrize("label", [-1, C, 2**32, -(2**63)])
def test_a_label_out_of_range(kind, label, assertions):
    loss_function, X, y, w = inputs(kind, weights="float")
    step(loss_function, X, y, w)
    y[3] = label
    with pytest.raises(IndexError, match="is outside 0"):
        loss_function(X, y, sample_weights=w)
    with pytest.raises(Exception, match="a label is outside"):
        assertions(the_plan(loss_function), X, y, w)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a device-side assertion ends the process")
@pytest.mark.parametrize("weight", [-0.5, torch.nan, torch.inf])
def test_a_weight_out_of_range(weight, assertions):
    loss_function, X, y, w = inputs("Proxy-Anchor", weights="float")
    step(loss_function, X, y, w)
    w[3] = weight
    with pytest.raises(ValueError, match="sample_weights must be finite"):
        loss_function(X, y, sample_weights=w)
    with pytest.raises(Exception, match="sample_weights must be finite"):
        assertions(the_plan(loss_function), X, y, w)


@pytest.fixture
def assertions(monkeypatch):
    """Runs the first kernel of a plan with its assertions, which the interpreter otherwise leaves out."""
    from triton.runtime import interpreter

    options = interpreter.InterpreterOptions(debug=True, sanitize_overflow=False)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", options)

    def run(plan, X, y, w):
        U, norms = X.new_empty(X.shape), X.new_empty(len(X))
        counts = torch.empty(plan.prepare.grid[0], dtype=torch.int32)
        plan.prepare(X.detach(), U, norms, y, w, torch.empty_like(norms), counts, None, None)

    return run


@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax"])
def test_no_sample_of_positive_weight(kind):
    loss_function, X, y, _ = inputs(kind)
    loss, dX, dP = step(loss_function, X, y, torch.zeros(B, device=DEVICE))
    assert loss == 0
    assert not dX.any()
    assert not dP.any()


def test_one_class_without_a_negative():
    torch.manual_seed(0)
    loss_function = losses.ProxyNCALoss(2, D, include_positive=False, backend="triton").to(DEVICE)
    X, y = torch.randn(1, D, device=DEVICE, requires_grad=True), torch.ones(1, dtype=torch.int64, device=DEVICE)
    other = losses.ProxyNCALoss(2, D, include_positive=False, backend="eager").to(DEVICE)
    other.load_state_dict(loss_function.state_dict())
    torch.testing.assert_close(loss_function(X, y), other(X, y))
    assert isinstance(the_plan(loss_function), GpuPlan)


def test_a_plan_holds_no_tensor():
    loss_function, *given = inputs("softmax")
    step(loss_function, *given)
    plan = the_plan(loss_function)
    assert "tensor(" not in repr(plan)
    assert "class_lse" in repr(plan)


@pytest.mark.parametrize("kind", ["Proxy-Anchor", "softmax", "SupCon"])
def test_a_step_that_fails_its_self_check_takes_the_general_way(kind, monkeypatch):
    """The ops of the same backend may be right."""
    monkeypatch.setitem(KINDS, "SupCon", lambda *_, **more: losses.SupConLoss(**more))
    asked = []

    def verdict(table, backend, device):
        name = self_check.PRIMITIVES[id(table)].name
        asked.append(name)
        return "it is wrong" if name.endswith("_steps") else None

    monkeypatch.setattr(self_check, "CHECKED", {"cpu", "cuda"})
    monkeypatch.setattr(self_check, "verdict", verdict)
    dispatch._tell_once.cache_clear()
    torch.manual_seed(0)
    loss_function = KINDS[kind](C, D, backend="triton").to(DEVICE)
    X, y = torch.randn(B, D, device=DEVICE, requires_grad=True), torch.randint(5, (B,), device=DEVICE)
    with pytest.warns(RuntimeWarning, match="planned steps can't serve .*: it is wrong"):
        assert loss_function(X, y).isfinite()
    assert the_plan(loss_function) is None
    assert {"Proxy-Anchor": "anchor_steps", "softmax": "classes_steps", "SupCon": "pairs_steps"}[kind] in asked
