"""Rows of bfloat16 multiplied as they are, against float64 and against unit rows: on the GPU, or in the interpreter."""

from functools import partial

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from robustdml_ops.engine import gpu_plan
from robustdml_ops.engine.labels import LabelSets
from robustdml_ops.engine.rows.backends import TritonRows
from robustdml_ops.engine.similarity_chunks import Similarities
from robustdml_ops.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss
from robustdml_ops.ops.anchor.backends import AnchorOptions, AnchorProblem, ConfidenceSets, Wanted
from robustdml_ops.ops.anchor.sweep import BACKENDS as ANCHORS
from robustdml_ops.ops.anchor.sweep import anchor_sweep
from robustdml_ops.ops.classes import gpu_plan as class_gpu_plan
from robustdml_ops.ops.classes.backends import BACKENDS as CLASSES
from robustdml_ops.ops.classes.sweep import ClassProblem, Request, class_sweep, class_sweep_backward
from tests.triton_here import DEVICE, MARKS

pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:(overflow|underflow|invalid value|All-NaN):RuntimeWarning"),  # of rows of NaN
    pytest.mark.filterwarnings("ignore:.*an optimiser that rounds to the nearest:UserWarning"),
]
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
C, SHAPES = 15, [(12, 10), (37, 33), (64, 128)]  # B, D


@pytest.fixture(autouse=True)
def half_products(monkeypatch):
    """Products of bfloat16 with sums in float32, which PyTorch has on GPUs alone, and Triton's interpreter not."""
    if DEVICE.type == "cuda":
        return
    monkeypatch.setattr("robustdml_ops.backends.dispatch.multiplies_bfloat16", lambda device: True)
    dot = interpreter.InterpreterBuilder.create_dot

    def wide_dot(self, a, b, *rest):
        a, b = (
            interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
            if x.dtype.scalar == tl.bfloat16
            else x
            for x in (a, b)
        )
        return dot(self, a, b, *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", wide_dot)
    mm, addmm = torch.mm, torch.addmm
    monkeypatch.setattr(torch, "mm", lambda A, B, out_dtype=None, out=None: mm(*wide(out_dtype, A, B), out=out))
    monkeypatch.setattr(
        torch, "addmm", lambda total, A, B, out_dtype=None, out=None: addmm(total, *wide(out_dtype, A, B), out=out)
    )


def wide(dtype, *operands):
    return operands if dtype is None else tuple(operand.to(dtype) for operand in operands)


def anchors(sets, X, P, labels, backend, compute, operand, update=None):
    """Log-sum-exps, both gradients, and that of a bias."""
    to = partial(torch.as_tensor, dtype=compute, device=X.device)
    bias, n = to(0.8).expand(len(X)).contiguous(), C if update is None else len(update.rows)
    generator = torch.Generator().manual_seed(2)
    values = to(torch.rand(len(X), n, generator=generator, dtype=F64)) if sets == "confidences" else None
    of = LabelSets.of(labels) if values is None else ConfidenceSets(9.0, 0.5, values)
    anchor_bias = to(torch.rand(n, generator=generator, dtype=F64))
    problem = AnchorProblem(AnchorOptions(8.0, of), bias, bias, anchor_bias)
    upstream = to(torch.rand(n, generator=generator, dtype=F64)), to(0.3)
    want = Wanted(lse=True, embeddings=True, proxies=True, biases=update is None)
    result = anchor_sweep(X, P, problem, upstream, ANCHORS[backend], operand, want, update)
    return [value for name, value in vars(result).items() if value is not None and name != "total"]


def classes(pooling, X, P, labels, backend, compute, operand, update=None, saves=False):
    """With ``saves`` of one scale, and from the terms that forward saved, but in float64."""
    H = 1 if pooling == "none" else 3
    generator = torch.Generator().manual_seed(2)
    draw = lambda n: torch.rand(n, generator=generator, dtype=F64).to(X.device, compute)  # noqa: E731
    rows, n = (None, C) if update is None else (update.rows, len(update.rows))
    settings = {"target_bias": 0.3, "exclude_target": False, "centers": H, "pooling": pooling, "gamma": 0.2}
    scale, bias = (8 * draw(n // H), draw(n // H)) if not saves else (X.new_full((), 8.0, dtype=compute), None)
    problem = ClassProblem(LabelSets.of(labels % (n // H)), scale, bias, normalize=True, **settings)
    request = Request((True, True), graded=True, bounded=saves and compute == F32)
    *results, saved = class_sweep(X, P, problem, CLASSES[backend], operand, request, rows)
    upstream = draw(len(X)), draw(len(X))
    given = (problem, results, upstream, CLASSES[backend], operand, (True, True), update, saved)
    return [value for value in (*results, *class_sweep_backward(X, P, *given)) if value is not None]


saved = partial(classes, "none", saves=True)
OPS = {f"anchors, {sets}": partial(anchors, sets) for sets in ("labels", "confidences")}
OPS |= {f"classes, {pooling}": partial(classes, pooling) for pooling in ("none", "max", "softmax")}
OPS["classes, saved"] = saved


def matrices(shape, scale=1.0, spread=1.0):
    """Embeddings, proxies of lengths about ``scale`` and 1, and labels; half of the embeddings are near a proxy."""
    (B, D), generator = shape, torch.Generator().manual_seed(1)
    normal = lambda n: torch.randn(n, D, generator=generator, dtype=F64)  # noqa: E731
    labels, center = torch.arange(B) % C, normal(1) if spread < 1 else 0
    P, X = center + spread * normal(C), center + spread * normal(B)
    X[::2] = 0.3 * X[::2] + P[labels[::2]]
    factors = torch.ones(C, 1, dtype=F64)
    factors[::2] = scale
    return X.to(DEVICE, BF16), (P * factors).to(DEVICE, BF16), labels.to(DEVICE), factors


class TakenRows:
    """An update that saves the gradients it is given."""

    def __init__(self, rows=None):
        self.rows, self.taken = rows, []

    def take(self, first, G):
        self.taken.append(G.double())


def errors(found, exact):
    """Of each result, relative to its largest element."""
    return [
        float((mine.cpu().double() - truth).abs().max() / truth.abs().max())
        for mine, truth in zip(found, exact, strict=True)
    ]


def both_ways(op, X, P, labels, monkeypatch):
    """The results in bfloat16 as they are, by unit rows, and in float64."""
    seen = []
    backward = Similarities.backward
    with monkeypatch.context() as context:
        context.setattr(Similarities, "backward", lambda self, chunk: seen.append(chunk) or backward(self, chunk))
        ours = op(X, P, labels, "triton", F32, BF16)
        assert seen
        assert all(chunk.V.dtype == P.dtype for chunk in seen)
        assert all(chunk.V.data_ptr() == P[chunk.first].data_ptr() for chunk in seen)
        context.setattr(TritonRows, "as_they_are", lambda *_: None)
        units = op(X, P, labels, "triton", F32, BF16)
    exact = op(X.cpu().double(), P.cpu().double(), labels.cpu(), "eager", F64, F64)
    return ours, units, exact


@pytest.mark.parametrize("spread", [1.0, 0.05])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPS)
def test_as_exact_as_unit_rows(name, shape, spread, monkeypatch):
    """Nearly collinear rows, too, whose gradient is what is left of two larger terms; one of them is rounded first."""
    X, P, labels, _ = matrices(shape, spread=spread)
    ours, units, exact = both_ways(OPS[name], X, P, labels, monkeypatch)
    for mine, theirs in zip(errors(ours, exact), errors(units, exact), strict=True):
        assert mine <= 2.5 * theirs + 2.0**-9, (mine, theirs)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("name", OPS)
def test_any_length(name, scale):
    X, P, labels, factors = matrices(SHAPES[1], scale)
    ours = OPS[name](X, P, labels, "triton", F32, BF16)
    exact = OPS[name](X.cpu().double(), P.cpu().double(), labels.cpu(), "eager", F64, F64)
    dP = 3
    for found in (ours, exact):
        found[dP] = found[dP].cpu().double() * factors
    assert max(errors(ours, exact)) < 0.04


@pytest.mark.parametrize("name", OPS)
def test_zero_rows_and_rows_of_nan(name):
    X, P, labels, _ = matrices(SHAPES[1])
    P[4] = 0
    ours = OPS[name](X, P, labels, "triton", F32, BF16)
    exact = OPS[name](X.cpu().double(), P.cpu().double(), labels.cpu(), "eager", F64, F64)
    assert not ours[3][4].any()
    assert max(errors(ours, exact)) < 0.04
    P[7, 2] = torch.nan
    ours, eager = (OPS[name](X, P, labels, backend, F32, BF16) for backend in ("triton", "eager"))
    assert all(torch.equal(mine.isnan(), theirs.isnan()) for mine, theirs in zip(ours[:4], eager[:4], strict=True))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", OPS)
def test_layouts_rows_and_updates(name):
    """Rows that lie apart, and columns; an update takes the gradient of the rows it names."""
    X, P, labels, _ = matrices(SHAPES[1])
    expected = OPS[name](X, P, labels, "triton", F32, BF16)
    apart, columns = torch.cat([P, P], 1)[:, : P.shape[1]], P.t().contiguous().t()
    for other in (apart, columns):
        ours = OPS[name](X, other, labels, "triton", F32, BF16)
        assert ours[3].stride() == (columns if other is columns else P).stride()
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    places = torch.arange(C, device=DEVICE).flip(0)[: C // 3 * 3]
    other = TakenRows(places.cpu())
    exact = OPS[name](X.cpu().double(), P.cpu().double(), labels.cpu(), "eager", F64, F64, other)
    for rows in (P, P.repeat_interleave(2, 1)[:, ::2]):  # the chosen rows lie side by side, all of them do not
        update = TakenRows(places)
        ours = OPS[name](X, rows, labels, "triton", F32, BF16, update)
        pairs = [*zip(ours, exact, strict=True), (torch.cat(update.taken), torch.cat(other.taken))]
        assert max(errors(*zip(*pairs, strict=True))) < 0.04


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
@pytest.mark.parametrize(("pooling", "H"), [("none", 1), ("softmax", 3)])
def test_fused_forward_of_classes(pooling, H, scale):
    X, P, labels, _ = matrices(SHAPES[1], scale)
    labels, settings = LabelSets.of(labels % (C // H)), {"gamma": 0.2, "normalize": True}
    settings |= {"target_bias": 0.0, "exclude_target": False, "centers": H, "pooling": pooling}
    problem = ClassProblem(labels, torch.full((), 8.0, device=DEVICE), None, **settings)
    ours = class_sweep(X, P, problem, CLASSES["triton"], BF16, Request())[:2]
    problem = ClassProblem(labels, torch.full((), 8.0, device=DEVICE).double(), None, **settings)
    exact = class_sweep(X.double(), P.double(), problem, CLASSES["eager"], F64, Request())[:2]
    assert max(errors(ours, [value.cpu() for value in exact])) < 0.02


@pytest.mark.parametrize("rows", [7, 64])
@pytest.mark.parametrize(("kind", "most"), [(ProxyAnchorLoss, 0.015), (NormalizedSoftmaxLoss, 0.06)])
@pytest.mark.parametrize("noise", [1.0, 0.3, 0.1, 0.03, 0.01])
def test_planned_gradients_of_proxies_near_their_samples(kind, most, noise, rows, monkeypatch):
    """The radial part leaves dP before it is rounded: near a sample little of it is left.

    The error is that of rounded embeddings and of rounded dL/dS, at every distance.
    """
    monkeypatch.setattr(gpu_plan, "chunk_rows", lambda *_: rows)
    monkeypatch.setattr(class_gpu_plan, "bytes_to_save", lambda _: 1 << 30)
    torch.manual_seed(0)
    n, D = 16, 128
    P = (torch.randn(n, D) * 0.05).to(BF16).float()
    X = torch.nn.functional.normalize(P, dim=1).repeat(4, 1) + noise * torch.randn(4 * n, D) / D**0.5
    X, y = X.to(BF16), torch.arange(n).repeat(4)
    found = []
    for dtype, backend in ((BF16, "triton"), (F64, "eager")):
        loss_function = kind(n, D, backend=backend).to(DEVICE, dtype)
        (parameter,) = loss_function.parameters()
        parameter.data = (P if parameter.shape == P.shape else P.t()).to(DEVICE, dtype)
        loss_function(X.to(DEVICE, dtype).requires_grad_(), y.to(DEVICE)).backward()
        found.append(parameter.grad.cpu().double().view(parameter.shape))
        assert (None in loss_function._plans.known.values()) == (backend == "eager")
    ours, exact = found
    assert (ours - exact).norm() <= most * exact.norm()
