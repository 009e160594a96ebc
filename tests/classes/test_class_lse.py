"""The class log-sum-exp against its reference, and what it does at its edges."""

import math

import pytest
import torch

from python_ref import class_log_sum_exp
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.op_arguments import flatten
from robustdml_ops.ops import ABSENT, class_lse
from robustdml_ops.ops.classes.autograd import class_gradient_op, class_sweep_op
from robustdml_ops.ops.classes.sweep import ClassProblem
from tests.nightly import nightly_but

BACKENDS = ("native", "eager")
POOLINGS = {"none": {}, "max": {"pooling": "max"}, "softmax": {"pooling": "softmax", "gamma": 0.2}}


class Case:
    """Random inputs in float64; half of the samples lie near a proxy, and lengths differ."""

    def __init__(self, B, C, D, H=None, seed=0, K=None, **options):
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(C, (B,), generator=random)
        several = torch.rand(B, C, generator=random).argsort(1)[:, :K]
        several.masked_fill_(torch.rand(several.shape, generator=random) < 0.3, ABSENT)
        self.proxies = torch.randn(*((C, D) if H is None else (C, H, D)), generator=random, dtype=torch.float64) * 2
        near = self.proxies.reshape(C, -1, D)[self.labels, 0]
        self.embeddings = torch.randn(B, D, generator=random, dtype=torch.float64)
        self.embeddings[::2] = 0.5 * self.embeddings[::2] + near[::2]
        if K is not None:
            self.labels = several
        shapes = (B,), self.labels.shape
        self.upstream = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
        self.options = options

    def run(self, function, dtype=torch.float64, want=(True, True), **more):
        """lse, target and the gradients of their upstream-weighted sum; -inf and its upstream stay out of the sum."""
        matrices = (self.embeddings, self.proxies)
        X, P = (value.detach().to(dtype).requires_grad_(one) for value, one in zip(matrices, want, strict=True))
        options = {k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in (self.options | more).items()}
        lse, target = function(X, P, self.labels, **options)
        total = sum(
            (value.masked_fill(value == -torch.inf, 0) * weight.to(dtype)).sum()
            for value, weight in zip((lse, target), self.upstream, strict=True)
        )
        return [
            lse.detach(),
            target.detach(),
            *torch.autograd.grad(total, [value for value in (X, P) if value.requires_grad]),
        ]


def assert_close(ours, exact, tolerance):
    for mine, truth in zip(ours, exact, strict=True):
        largest = truth[truth.isfinite()].abs().max() if truth.isfinite().any() else 0
        torch.testing.assert_close(mine, truth, rtol=tolerance, atol=tolerance * max(1.0, float(largest)))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("exclude_target", [False, True])
def test_concentrations(exclude_target, backend):
    """κ up to 1e4 with log-normalisers as large, as the von Mises–Fisher similarity has them; κ = 0 among them."""
    kappa = torch.logspace(-1, 4, 50).double()
    kappa[7] = 0
    case = Case(20, 50, 16, scale=kappa, bias=-kappa + 5, exclude_target=exclude_target)
    assert_close(case.run(class_lse, backend=backend), case.run(class_log_sum_exp), 1e-9)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("exclude_target", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_similar_negatives_and_several_labels(pooling, exclude_target):
    """A label is never dropped; half of the samples lie near one of their classes."""
    H = None if pooling == "none" else 3
    settings = {"scale": 9.0, "target_bias": -0.4, "exclude_target": exclude_target, **POOLINGS[pooling]}
    for K in (None, 1, 3):
        for drop in (math.inf, 0.2, -0.9):
            case = Case(19, 45, 7, H, K=K, **settings)
            expected = case.run(class_log_sum_exp, drop_similar_negatives=drop)
            for backend in BACKENDS:
                found = case.run(class_lse, backend=backend, drop_similar_negatives=None if drop == math.inf else drop)
                torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pooling", ["max", "softmax"])
def test_equal_centers(pooling, backend):
    """H copies of one centre are one centre; their gradients sum to its gradient, however they share it."""
    single = Case(8, 6, 5, 1, scale=5.0, **POOLINGS[pooling])
    copies = Case(8, 6, 5, 1, scale=5.0, **POOLINGS[pooling])
    copies.proxies = single.proxies.expand(6, 3, 5).contiguous()
    *values, dX, dP = single.run(class_lse, backend=backend)
    *copied, dX_copied, dP_copied = copies.run(class_lse, backend=backend)
    torch.testing.assert_close((*values, dX, dP), (*copied, dX_copied, dP_copied.sum(1, keepdim=True)))


def test_types_and_layouts():
    """A scale or bias of another type or layout is taken as it is meant; half precision gives float32."""
    case = Case(9, 12, 6)
    X, P, y = case.embeddings.float(), case.proxies.float(), case.labels
    scale, bias = torch.rand(24).double()[::2], torch.tensor(0.5).expand(12)
    expected = class_lse(X, P, y, scale=scale.float().contiguous(), bias=bias.contiguous())
    torch.testing.assert_close(class_lse(X, P, y.int(), scale=scale, bias=bias), expected, rtol=0, atol=0)
    half = class_lse(X.bfloat16(), P.bfloat16(), y)
    assert half.lse.dtype == torch.float32
    exact = class_lse(X.bfloat16().float(), P.bfloat16().float(), y)
    torch.testing.assert_close(half, exact, rtol=4e-3, atol=4e-3)  # lanes may multiply bfloat16


WANTS = [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize("columns", nightly_but([True], [False, True]))
@pytest.mark.parametrize("want", nightly_but(WANTS[:1], WANTS))
def test_registered_ops_keep_the_contract_of_the_registry(want, columns):
    case = Case(6, 9, 4)
    matrices = (case.embeddings, case.proxies.t().contiguous().t() if columns else case.proxies)
    for bias, labels in ((torch.zeros(9).double(), LabelSets.of(case.labels)), (None, LabelSets(case.labels))):
        limits = None if bias is None else torch.full((6,), 0.4).double()
        scale = torch.tensor(3.0).double()
        problem = flatten(ClassProblem(labels, scale, bias, target_bias=0.5, drop_similar_negatives=limits))
        settings = (True, "auto", torch.float64)
        torch.library.opcheck(class_sweep_op, (*matrices, *settings, *problem))
        results = class_sweep_op(*matrices, *settings, *problem)
        torch.library.opcheck(class_gradient_op, (*matrices, *results, *case.upstream, *settings, list(want), *problem))


X3, P3, Y3 = torch.eye(3), torch.eye(3), torch.arange(3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": float("nan")}, "scale must be finite, got nan"),
        ({"scale": torch.tensor([1.0, 2.0])}, "scale must be a floating-point vector of length 3"),
        ({"scale": torch.ones(3, requires_grad=True)}, r"scale requires a gradient.*scale.detach\(\)"),
        ({"scale": torch.tensor([1.0, torch.inf, 1.0])}, r"scale\[1\] is NaN or inf"),
        ({"bias": torch.ones(2)}, "bias must be a floating-point vector of length 3"),
        ({"bias": torch.ones(3, requires_grad=True)}, "bias requires a gradient"),
        ({"bias": torch.tensor([0.0, 0.0, torch.nan])}, r"bias\[2\] is NaN or inf"),
        ({"bias": torch.tensor([torch.inf, 0.0, 0.0])}, r"bias\[0\] is NaN or inf"),
        ({"target_bias": -torch.inf}, "target_bias must be finite"),
        ({"pooling": "mean"}, "pooling='mean': expected one of none, max, softmax"),
        ({"pooling": "softmax"}, "needs a finite gamma > 0, got None"),
        ({"pooling": "softmax", "gamma": 0.0}, "needs a finite gamma > 0, got 0.0"),
        ({"gamma": 0.1}, "gamma=0.1 is the temperature of pooling='softmax'"),
        ({"proxies": torch.ones(3, 2, 3)}, "proxies have 2 sub-centres a class: choose"),
        ({"proxies": torch.ones(0, 3)}, "at least one class"),
        ({"labels": torch.tensor([[0, 1], [2, 2], [1, 0]])}, "labels must be distinct .*, got class 2 twice"),
        ({"drop_similar_negatives": -1.0}, r"drop_similar_negatives must lie in \(-1, 1\], got -1.0"),
        ({"drop_similar_negatives": 0.5, "normalize_proxies": False}, "leave it out beside normalize_proxies=False"),
        ({"proxies": torch.tensor([[1.0, 0, 0], [0, torch.nan, 0], [0, 0, 1]])}, "row 1 of the proxies has NaN"),
        ({"backend": "cublas"}, "backend='cublas'"),
    ],
)
def test_bad_input(arguments, message):
    given = {"embeddings": X3, "proxies": P3, "labels": Y3} | arguments
    with pytest.raises(ValueError, match=message):
        class_lse(**given)


@pytest.mark.parametrize("labels", [[0, 1, 3], [0, -1, 2], [[0, 1], [ABSENT, 3], [0, 1]]])
def test_labels_outside(labels):
    with pytest.raises(IndexError, match=r"labels\[.*\] = -?\d is outside 0 … 2"):
        class_lse(X3, P3, torch.tensor(labels))
