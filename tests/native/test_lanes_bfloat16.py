"""Sweeps by lanes whose products are of bfloat16: within its rounding of float64, and float32 where there is none."""

import copy
import itertools

import pytest
import torch

from robustdml_ops.backends import native_module
from robustdml_ops.losses import ProxyAnchorLoss, ProxyNCALoss, SmoothProxyAnchorLoss
from robustdml_ops.optim import ProxySGD

pytestmark = [
    pytest.mark.skipif(native_module.bfloat16_product() == (0, 0), reason="no products of bfloat16 in lanes here"),
    pytest.mark.filterwarnings("ignore:.*rounds to the nearest"),
    pytest.mark.filterwarnings("ignore:TF32 acceleration"),  # by flags() of torch.backends.mkldnn
]
B, C, D = 37, 301, 23
BF16, F32 = torch.bfloat16, torch.float32


CASES = {
    "proxy-anchor": (ProxyAnchorLoss, {}, lambda: torch.randint(C, (B,))),
    "proxy-anchor none": (ProxyAnchorLoss, {"reduction": "none"}, lambda: torch.randint(C, (B,))),
    "sampled": (ProxyAnchorLoss, {"negative_share": 0.3}, lambda: torch.randint(C, (B,))),
    "smooth dense": (SmoothProxyAnchorLoss, {}, lambda: torch.rand(B, C)),
    "smooth factored": (SmoothProxyAnchorLoss, {}, lambda: (torch.randn(B, 5), torch.randn(C, 5), torch.randn(C))),
    "proxy-nca": (ProxyNCALoss, {}, lambda: torch.randint(C, (B,))),
}


@pytest.fixture(autouse=True)
def pays(monkeypatch):
    """On a processor that multiplies float32 faster, too."""
    monkeypatch.setattr(native_module, "bfloat16_pays", lambda: True)


@pytest.fixture(params=CASES)
def case(request):
    """A loss, its inputs in values that bfloat16 has, and the targets."""
    kind, settings, targets = CASES[request.param]
    loss = kind(C, D, **settings).to(BF16).float()
    return loss, torch.randn(B, D).to(BF16), targets()


def step(case, *types, autocast=False):
    """Value, dX and dP with embeddings and proxies in these types."""
    loss, X, target = case
    X, loss = X.detach().to(types[0], copy=True).requires_grad_(), copy.deepcopy(loss).to(types[1])  # draws anew
    if types[0] == torch.float64 and isinstance(target, tuple | torch.Tensor):
        double = lambda t: t.double() if t.is_floating_point() else t  # noqa: E731
        target = tuple(map(double, target)) if isinstance(target, tuple) else double(target)
    with torch.autocast("cpu", BF16, enabled=autocast):
        value = loss(X, target).sum()
    value.backward()
    return [tensor.detach().double() for tensor in (value, X.grad, loss.proxies.grad)]


@pytest.mark.parametrize("shape", list(itertools.product((1, 16, 33, 130), (1, 31, 64, 129), (1, 32, 97))), ids=str)
def test_products_of_any_shape(shape):
    """Operands are rounded to nearest, sums are of float32, and no row behind the last is part of them."""
    B, D, rows = shape
    X, V, dS = torch.randn(B, D), torch.randn(rows, D), torch.randn(rows, B)
    room = -(-rows // 32) * 32
    S, dX, dV = torch.empty(room, B), torch.empty(B, D), torch.empty(room, D)
    places = [M.data_ptr() for M in (X, V, dS, S, dX, dV)]
    native_module.library.bfloat16_products(*native_module.bfloat16_product(), *places[:3], B, D, rows, *places[3:])
    X, V, dS = (M.to(BF16).double() for M in (X, V, dS))
    for ours, exact in ((S[:rows], V @ X.t()), (dX, dS.t() @ V), (dV[:rows], dS @ X)):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("types", "autocast"), [((F32, F32), True), ((BF16, F32), False), ((BF16, BF16), False)])
def test_within_the_rounding_of_bfloat16(case, types, autocast, threads):
    exact = step(case, torch.float64, torch.float64)
    of_float32 = step(case, F32, F32)
    for count in (1, 3):
        threads(count)
        ours = step(case, *types, autocast=autocast)
        assert not torch.equal(ours[1], of_float32[1])
        torch.testing.assert_close(ours[0], exact[0], rtol=2e-3, atol=0)
        for gradient, reference in zip(ours[1:], exact[1:], strict=True):
            # Roundings of 2⁻⁹ of both factors and of the result.
            assert (gradient - reference).norm() < 2**-7 * reference.norm()
        torch.testing.assert_close(ours, step(case, *types, autocast=autocast), rtol=0, atol=0)


@pytest.mark.usefixtures("small_chunks")
def test_float32_where_onednn_is_off(case, monkeypatch):
    """And where it is faster, or where proxies lie by columns, which the kernel does not read."""
    of_float32 = step(case, F32, F32)
    with monkeypatch.context() as patch:
        patch.setattr(native_module, "bfloat16_pays", lambda: False)
        torch.testing.assert_close(step(case, F32, F32, autocast=True), of_float32)
    with torch.backends.mkldnn.flags(enabled=False):
        torch.testing.assert_close(step(case, F32, F32, autocast=True), of_float32)
    loss = case[0]
    loss.proxies = torch.nn.Parameter(loss.proxies.detach().t().contiguous().t())
    torch.testing.assert_close(step(case, F32, F32, autocast=True), step(case, F32, F32))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("columns", [False, True])
def test_bfloat16_proxies_beside_products_of_float32(case, columns):
    """Gradients are those of float32, rounded once."""
    loss, *_ = case
    if columns:
        loss.proxies = torch.nn.Parameter(loss.proxies.detach().t().contiguous().t())
    value, dX, dP = step(case, F32, F32)
    ours = step(case, F32, BF16)
    torch.testing.assert_close(ours[:2], [value, dX], rtol=1e-5, atol=1e-6 * float(dX.abs().max()))
    torch.testing.assert_close(ours[2], dP, rtol=2**-8, atol=1e-6 * float(dP.abs().max()))


@pytest.mark.usefixtures("small_chunks")
def test_short_rows_of_bfloat16_proxies():
    """Each has a gradient of its own length, and one beyond the type is named."""
    loss, X, y = ProxyAnchorLoss(C, D), torch.randn(B, D), torch.arange(B)
    loss.proxies.data[7] *= 1e-20
    loss.to(BF16)
    loss(X, y).backward()
    assert loss.proxies.grad[7].norm() > 1e15
    loss = ProxyAnchorLoss(C, D, alpha=1e4)
    loss.proxies.data[7] *= 3e-38
    with pytest.raises(ValueError, match=r"the gradient of proxies\[7\] is beyond torch.bfloat16"):
        loss.to(BF16)(X, y)


@pytest.mark.usefixtures("small_chunks")
def test_rows_of_any_length_among_others():
    loss = ProxyAnchorLoss(C, D)
    loss.proxies.data *= torch.logspace(-20, 20, C)[:, None]
    case = loss, torch.randn(B, D), torch.randint(C, (B,))
    ours = step(case, F32, F32, autocast=True)
    exact, length = step(case, torch.float64, torch.float64), loss.proxies.detach().double().norm(dim=1, keepdim=True)
    torch.testing.assert_close(ours[0], exact[0], rtol=1e-2, atol=0)
    assert (ours[1] - exact[1]).norm() < 2**-6 * exact[1].norm()
    assert ((ours[2] - exact[2]) * length).norm() < 2**-6 * (exact[2] * length).norm()


@pytest.mark.usefixtures("small_chunks")
def test_an_optimiser_in_the_sweep():
    """Its step is that of the gradients in products of bfloat16."""
    X, y = torch.randn(B, D), torch.randint(C, (B,))
    moved = []
    for autocast in (False, True):
        torch.manual_seed(5)
        loss = ProxyAnchorLoss(C, D)
        before = loss.proxies.detach().clone()
        optimiser = ProxySGD(loss, lr=1.0)
        with torch.autocast("cpu", BF16, enabled=autocast):
            value = loss(X.requires_grad_(), y)
        value.backward()
        optimiser.step()
        moved.append(loss.proxies.detach() - before)
    difference = (moved[1] - moved[0]).norm()
    assert 0 < difference < 2**-7 * moved[0].norm()
