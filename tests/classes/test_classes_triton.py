"""The class log-sum-exp in Triton against eager: on the GPU, or in Triton's interpreter on the CPU."""

import pytest
import torch

from robustdml_ops.engine.label_sets import LabelSets
from robustdml_ops.engine.precision import operand_dtype
from robustdml_ops.ops.classes import fused_forward
from robustdml_ops.ops.classes import triton as triton_classes
from robustdml_ops.ops.classes.problem import ClassProblem
from robustdml_ops.ops.classes.sweep import BACKENDS, class_sweep, class_sweep_backward
from robustdml_ops.ops.classes.triton import slices_of
from tests.nightly import nightly_but
from tests.triton_here import DEVICE, MARKS

EAGER, TRITON = BACKENDS["eager"], BACKENDS["triton"]

pytestmark = MARKS
# The interpreter's products of bfloat16 are not the device's.
OPERANDS = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
POOLINGS = [("none", 1), ("max", 3), ("softmax", 3), ("softmax", 1)]
SHAPES = [(5, 7, 3), (33, 65, 40), (1, 1, 1), (150, 9, 17), (20, 70, 200)]


class Case:
    """A problem in float64 on the CPU, to be had in any type and on any device."""

    def __init__(self, shape, pooling="none", H=1, *, scale="vector", bias=True, exclude=False, normalize=True):
        self.B, self.C, self.D = B, C, D = shape
        random = torch.Generator().manual_seed(B + C)
        normal = lambda *size: torch.randn(*size, generator=random, dtype=torch.float64)  # noqa: E731
        self.proxies, self.labels = normal(C * H, D), torch.randint(C, (B,), generator=random)
        self.embeddings = normal(B, D)
        self.embeddings[::2] = 0.3 * self.embeddings[::2] + self.proxies[self.labels[::2] * H]
        self.upstream = normal(B), normal(B)
        self.scale = 16 * torch.rand(C, generator=random, dtype=torch.float64) if scale == "vector" else normal(1)[0]
        self.bias = normal(C).masked_fill_(torch.rand(C, generator=random) < 0.2, -torch.inf) if bias else None
        self.settings = {"target_bias": 0.3, "exclude_target": exclude, "centers": H, "pooling": pooling}
        self.settings |= {"gamma": 0.2, "normalize": normalize}

    def run(self, backend, device=DEVICE, dtype=torch.float32, operand=None, fused=False):
        """lse, target, dX and dP; the fused forward has none to go back through."""
        X, P = (tensor.to(device, operand or dtype) for tensor in (self.embeddings, self.proxies))
        to = lambda tensor: None if tensor is None else tensor.to(device, dtype)  # noqa: E731
        labels, operand = LabelSets.of(self.labels.to(device)), operand_dtype(dtype, X)
        problem = ClassProblem(labels=labels, scale=to(self.scale), bias=to(self.bias), **self.settings)
        results = class_sweep(X, P, problem, backend, operand, differentiable=not fused)
        if fused:
            return dict(zip(("lse", "target"), results, strict=True))
        upstream = tuple(map(to, self.upstream))
        gradients = class_sweep_backward(X, P, problem, results, upstream, backend, operand, (True, True))
        return dict(zip(("lse", "target", "dX", "dP"), (*results, *gradients), strict=True))

    def check(self, fused, operand=None):
        """|ours − exact| ≤ 4 · |eager in the same type − exact| + a few roundings, and NaN nowhere."""
        if operand is not None:
            self.embeddings, self.proxies = (x.to(operand).double() for x in (self.embeddings, self.proxies))
        ours, eager = self.run(TRITON, operand=operand, fused=fused), self.run(EAGER, operand=operand)
        exact = self.run(EAGER, torch.device("cpu"), torch.float64)
        for name in ours:
            truth = exact[name]
            masked = truth == -torch.inf
            assert torch.equal(ours[name].cpu() == -torch.inf, masked), name
            mine, theirs, truth = (v.cpu().double().masked_fill(masked, 0) for v in (ours[name], eager[name], truth))
            error, eager_error = (mine - truth).abs().max(), (theirs - truth).abs().max()
            roundings = 16 * torch.finfo(torch.float32).eps * (1 + truth.abs().max())
            assert error <= 4 * eager_error + roundings, f"{name}: {error:.3g}, eager {eager_error:.3g}"


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize(("pooling", "H"), POOLINGS)
@pytest.mark.parametrize("shape", nightly_but(SHAPES[1:3], SHAPES))
def test_as_exact_as_eager(shape, pooling, H, operand, fused):
    Case(shape, pooling, H).check(fused, operand)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("pooling", "H"), POOLINGS)
def test_float64_over_many_chunks(pooling, H):
    case = Case((17, 20, 9), pooling, H)
    ours, exact = case.run(TRITON, dtype=torch.float64), case.run(EAGER, dtype=torch.float64)
    for name, value in exact.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-11, atol=1e-11, msg=name)


@pytest.mark.parametrize("options", [{"scale": "one", "bias": False}, {"exclude": True}, {"normalize": False}], ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_options(options, fused):
    Case((33, 140, 24), **options).check(fused)


@pytest.mark.parametrize("fused", [False, True])
def test_large_logits_and_everything_masked(fused):
    case = Case((9, 70, 6))
    case.scale = case.scale * 600
    case.check(fused)
    case.bias[:] = -torch.inf
    case.settings["exclude_target"] = True
    ours = case.run(TRITON, fused=fused)
    assert (ours["lse"] == -torch.inf).all()
    assert fused or ours["dX"].isfinite().all()


@pytest.mark.parametrize("fused", [False, True])
def test_proxies_stored_by_column_and_zero_rows(fused):
    case = Case((33, 20, 12))
    case.proxies[3] = 0
    case.proxies = case.proxies.t().contiguous().t()
    case.check(fused)
    assert fused or case.run(TRITON)["dP"][3].count_nonzero() == 0


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, on NaN
@pytest.mark.parametrize(("pooling", "H"), POOLINGS[:3])
@pytest.mark.parametrize("fused", [False, True])
def test_nan_stays(pooling, H, fused):
    case = Case((9, 11, 6), pooling, H, bias=False)
    case.proxies[4, 1] = torch.nan
    assert case.run(TRITON, fused=fused)["lse"].isnan().all()


@pytest.mark.parametrize("fused", [False, True])
def test_same_bits_twice(fused):
    case = Case((40, 150, 9), "softmax", 2)
    first, second = (case.run(TRITON, fused=fused) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("fused", [False, True])
def test_parts_of_several_blocks(fused, monkeypatch):
    for module in (triton_classes, fused_forward):
        monkeypatch.setattr(module, "slices_of", lambda classes, block, most: slices_of(classes, block, 2))
    Case((5, 300, 8), bias=False).check(fused)


def test_the_fused_forward_leaves_float64_to_the_sweep():
    case = Case((5, 30, 8), bias=False)
    problem = ClassProblem(labels=LabelSets.of(case.labels), scale=case.scale, bias=None, **case.settings)
    assert not fused_forward.fused_forward_serves(case.embeddings, problem)
