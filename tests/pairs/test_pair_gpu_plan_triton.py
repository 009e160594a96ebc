"""Planned steps of losses on pairs on a GPU against float64, and against the general way of the same kernels."""

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.engine import similarity_chunks
from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.losses.memory_contrastive import BatchAndBankPlan
from robustdml_ops.ops.pairs import compiled_backends
from robustdml_ops.ops.pairs import gpu_plan as plans
from robustdml_ops.ops.pairs import sweep as sweeps
from robustdml_ops.ops.pairs.gpu_plan import PairGpuPlan
from tests.nightly import nightly_but
from tests.triton_here import DEVICE, MARKS

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore:(invalid value|All-NaN slice|divide):RuntimeWarning")]
F64 = torch.float64
ON_PAIRS = {
    "contrastive": losses.ContrastiveLoss,
    "cosine": lambda **more: losses.ContrastiveLoss(0.9, 0.3, distance="cosine", **more),
    "squared": lambda **more: losses.ContrastiveLoss(0.1, 1.4, distance="squared", **more),
    "ms": losses.MultiSimilarityLoss,
    "mined": lambda **more: losses.MultiSimilarityLoss(epsilon=0.0517, **more),
    "steep": lambda **more: losses.MultiSimilarityLoss(900.0, 700.0, **more),
    "supcon": losses.SupConLoss,
    "inside": lambda **more: losses.SupConLoss(0.2, form="inside", **more),
    "nt-xent": lambda **more: losses.NTXentLoss(0.2, **more),
    "memory": losses.MemoryContrastiveLoss,
    "authors": lambda **more: losses.MemoryContrastiveLoss(variant="authors", **more),
    "bspml": losses.BSPMLLoss,
    "bspml without zeros": lambda **more: losses.BSPMLLoss(exclude_zero_weights=True, **more),
}
TOWERS = {
    "both sides": lambda **more: losses.InfoNCELoss(0.2, **more),
    "one side": lambda **more: losses.InfoNCELoss(0.2, symmetric=False, **more),
    "sigmoid": lambda **more: losses.SigmoidLoss(0.2, -2.0, **more),
}
HINGES = ("contrastive", "cosine", "squared")  # means over terms
GIVEN = ("alone", "bank", "view")
CASES = [(name, given) for name in ON_PAIRS for given in (GIVEN[:1] if name.startswith("bspml") else GIVEN)]
CASES += [(name, "towers") for name in TOWERS]
WEIGHTS = {
    "none": lambda B: None,
    "bool": lambda B: torch.arange(B) % 3 != 1,
    "float": lambda B: torch.linspace(0.5, 2, B, dtype=F64).masked_fill(torch.arange(B) % 4 == 1, 0),
}


@pytest.fixture(params=["one chunk", "chunks"])
def chunks(request, monkeypatch):
    if request.param == "chunks":
        for module in (plans, sweeps):
            monkeypatch.setattr(module, "chunk_rows", lambda *_: 16)
        monkeypatch.setattr(similarity_chunks, "chunk_rows", lambda *_: 16)
    return request.param


def inputs(given="alone", dtype=torch.float32, device=DEVICE, B=37, D=13, m=30):
    """Matrices with a zero row, and a call of a loss with them; the same numbers in every type."""
    generator = torch.Generator().manual_seed(B)
    X, V = (torch.randn(rows, D, generator=generator, dtype=F64) for rows in (B, m if given == "bank" else B))
    X[4 % B] = 0
    y, z = (torch.randint(5, (rows,), generator=generator) + 2**40 for rows in (B, m))
    z[::7] = ABSENT
    matrices = [one.to(device, dtype).requires_grad_() for one in ([X] if given == "alone" else [X, V])]
    y, z = y.to(device), z.to(device)
    return matrices, {
        "alone": lambda loss, X, **more: loss(X, y, **more),
        "bank": lambda loss, X, V, **more: loss(X, y, None, V, z, **more),
        "view": lambda loss, X, V, **more: loss(X, y, None, V, **more),
        "towers": lambda loss, X, V, **more: loss(X, V, **more),
    }[given]


def step(name, given, backend="triton", dtype=torch.float32, weights="none", device=DEVICE, upstream=1.0, **more):
    """The loss, the gradients of matrices and parameters, and the plan."""
    loss_function = (ON_PAIRS | TOWERS)[name](backend=backend, **more).to(device, dtype)
    matrices, call = inputs(given, dtype, device)
    w = WEIGHTS[weights](len(matrices[0]))
    w = w if w is None else w.to(device, dtype if w.is_floating_point() else w.dtype)
    loss = call(loss_function, *matrices, sample_weights=w)
    (upstream * loss).backward()
    found = [loss.detach(), *(one.grad for one in (*matrices, *loss_function.parameters()))]
    (plan,) = loss_function._plans.known.values()
    return found, plan


def error(ours, exact):
    return float((ours.cpu().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("weights", nightly_but(["none", "float"], WEIGHTS))
@pytest.mark.parametrize(("name", "given"), CASES)
def test_as_exact_as_the_general_way(name, given, weights, chunks, monkeypatch):
    """Mostly with its bits: sums over all anchors, several products and factors of means may be rounded otherwise."""
    weights = "float" if weights == "bool" and given == "towers" else weights
    upstream = {"none": 1.0, "bool": 0.3, "float": -2.0}[weights]
    exact, _ = step(name, given, "eager", F64, weights, torch.device("cpu"), upstream)
    ours, plan = step(name, given, weights=weights, upstream=upstream)
    if name == "both sides" and chunks == "chunks":
        assert plan is None
        return
    assert isinstance(plan, PairGpuPlan | BatchAndBankPlan)
    monkeypatch.setattr(losses.families.pairs, "pair_gpu_plan", lambda *_: None)
    monkeypatch.setattr(losses.families.contrast, "pair_gpu_plan", lambda *_: None)
    general, plan = step(name, given, weights=weights, upstream=upstream)
    assert plan is None
    same_order = chunks == "one chunk" or given != "alone"
    same_order &= name not in ("memory", "authors", "both sides") and (weights == "none" or name not in HINGES)
    for one, other, right in zip(ours, general, exact, strict=True):
        assert not same_order or one.dim() == 0 or torch.equal(one, other)
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert error(one, right) <= 1.5 * error(other, right) + 2e-7


RELATED = {"several labels": (3, False), "ids": (1, True), "both": (3, True)}


@pytest.mark.parametrize("kind", RELATED)
@pytest.mark.parametrize("case", nightly_but([("nt-xent", "alone"), ("both sides", "towers")], CASES), ids=str)
def test_several_labels_and_ids_are_planned(case, kind):
    (name, given), (K, has_ids), found = case, RELATED[kind], []
    generator = torch.Generator().manual_seed(0)
    y, z = (torch.randint(9, (rows, K), generator=generator) + 10 * torch.arange(K) for rows in (37, 30))
    ids, ref_ids = (torch.randint(-3, 12, (rows,), generator=generator) for rows in (37, 30))
    for backend, device in (("triton", DEVICE), ("eager", torch.device("cpu"))):
        loss_function = (ON_PAIRS | TOWERS)[name](backend=backend).to(device, F64)
        matrices, _ = inputs(given, F64, device)
        sides = {"bank": (None, matrices[-1], z.to(device)), "view": (None, matrices[-1])}.get(given, ())
        more = {"sample_ids": ids.to(device)} if has_ids else {}
        more |= {"ref_ids": ref_ids.to(device)} if has_ids and given == "bank" else {}
        more["sample_weights"] = WEIGHTS["float"](37).to(device)
        of_pairs = matrices if given == "towers" else (matrices[0], y.to(device), *sides)
        loss = loss_function(*of_pairs, **more)
        loss.backward()
        found.append([loss.detach(), *(one.grad for one in (*matrices, *loss_function.parameters()))])
        (plan,) = loss_function._plans.known.values()
        assert backend == "eager" or isinstance(plan, PairGpuPlan | BatchAndBankPlan)
    for ours, exact in zip(*found, strict=True):
        assert error(ours, exact) < 1e-10


@pytest.mark.parametrize("name", nightly_but(["mined", "contrastive"], ["mined", "contrastive", "memory"]))
def test_candidates_in_parts(name, monkeypatch):
    """A program takes one row, or some of its candidates."""
    tile = {"BLOCK_R": 1, "BLOCK_M": 32, "num_warps": 4}
    monkeypatch.setattr(compiled_backends, "epilogue_launch", lambda *_: tile)
    monkeypatch.setattr(compiled_backends, "_PROGRAMS", 6)
    found = []
    for backend, dtype, device in (("triton", torch.float32, DEVICE), ("eager", F64, torch.device("cpu"))):
        (X, V), call = inputs("bank", dtype, device, B=2, m=360)
        loss_function = ON_PAIRS[name](backend=backend)
        loss = call(loss_function, X, V)
        loss.backward()
        found.append([loss.detach(), X.grad, V.grad])
        (plan,) = loss_function._plans.known.values()
        assert backend == "eager" or getattr(plan, "of_bank", plan).parts == 3
    for ours, exact in zip(*found, strict=True):
        assert error(ours, exact) < 1e-5


@pytest.mark.parametrize("given", ["alone", "bank"])
@pytest.mark.parametrize("name", ["contrastive", "mined", "supcon"])
def test_types_of_the_gradients(name, given):
    exact, _ = step(name, given, "eager", F64, device=torch.device("cpu"))
    for dtype, most in ((torch.float16, 0.02), (torch.bfloat16, 0.1), (F64, 1e-11)):
        found, plan = step(name, given, dtype=dtype)
        assert isinstance(plan, PairGpuPlan)
        assert [one.dtype for one in found] == [F64 if dtype == F64 else torch.float32, *[dtype] * (len(found) - 1)]
        for ours, right in zip(found, exact, strict=True):
            assert error(ours, right) < most


@pytest.mark.parametrize(("name", "given"), [("supcon", "bank"), ("contrastive", "bank"), ("sigmoid", "towers")])
def test_gradients_that_are_not_wanted(name, given):
    all_of_them, _ = step(name, given)
    for place in range(len(all_of_them) - 1):
        loss_function = (ON_PAIRS | TOWERS)[name](backend="triton").to(DEVICE)
        matrices, call = inputs(given)
        leaves = [*matrices, *loss_function.parameters()]
        for other, leaf in enumerate(leaves):
            leaf.requires_grad_(other == place)
        call(loss_function, *matrices).backward()
        assert [leaf.grad is not None for leaf in leaves] == [other == place for other in range(len(leaves))]
        torch.testing.assert_close(leaves[place].grad, all_of_them[1 + place])


@pytest.mark.parametrize(("name", "given"), [("supcon", "alone"), ("contrastive", "bank"), ("both sides", "towers")])
def test_a_second_backward_and_second_derivatives(name, given):
    found = []
    for backend, dtype, device in (("triton", torch.float32, DEVICE), ("eager", F64, torch.device("cpu"))):
        loss_function = (ON_PAIRS | TOWERS)[name](backend=backend).to(device, dtype)
        matrices, call = inputs(given, dtype, device, B=12)
        leaves = [*matrices, *loss_function.parameters()]
        loss = call(loss_function, *matrices)
        again = [torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(2)]
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        second = torch.autograd.grad(sum((gradient**2).sum() for gradient in first), leaves)
        found.append([*again[0], *again[1], *first, *second])
    for ours, exact in zip(*found, strict=True):
        assert error(ours.detach(), exact.detach()) < 1e-4


@pytest.mark.parametrize("name", ["contrastive", "mined", "supcon", "nt-xent"])
def test_nan_reaches_the_loss(name):
    (X,), call = inputs()
    X.data[5, 5] = torch.nan
    loss_function = ON_PAIRS[name](backend="triton")
    assert call(loss_function, X).isnan()
    assert isinstance(next(iter(loss_function._plans.known.values())), PairGpuPlan)


@pytest.mark.parametrize("labels", ["one class", "no positives", "absent", "ignored", "nobody"])
@pytest.mark.parametrize("name", ["contrastive", "mined", "supcon", "nt-xent"])
def test_labels(name, labels):
    places = torch.arange(37)
    y = {
        "one class": torch.zeros_like(places),
        "no positives": places * 2**33,
        "absent": (places % 5).masked_fill(places % 3 == 0, ABSENT),
    }.get(labels, places % 5)
    weights = {"sample_weights": torch.zeros(37, device=DEVICE)} if labels == "nobody" else {}
    found = []
    for backend, dtype, device in (("triton", torch.float32, DEVICE), ("eager", F64, torch.device("cpu"))):
        loss_function = ON_PAIRS[name](backend=backend, ignore_index=1 if labels == "ignored" else None)
        (X, V), _ = inputs("bank", dtype, device, m=37)
        more = {name: weight.to(device, dtype) for name, weight in weights.items()}
        loss = loss_function(X, y.to(device), None, V, y.to(device).flip(0), **more)
        loss.backward()
        found.append([loss.detach(), X.grad, V.grad])
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.cpu().double(), exact, rtol=1e-4, atol=2e-6)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a device-side assertion ends the process")
@pytest.mark.parametrize("weight", [-0.5, torch.nan, torch.inf])
def test_a_weight_out_of_range(weight):
    (X,), call = inputs()
    w = torch.ones(37)
    loss_function = losses.SupConLoss(backend="triton")
    call(loss_function, X, sample_weights=w)
    w[3] = weight
    with pytest.raises(ValueError, match="sample_weights must be finite"):
        call(loss_function, X, sample_weights=w)


def test_a_plan_holds_no_tensor():
    _, plan = step("contrastive", "bank")
    assert "tensor(" not in repr(plan)
    assert "pair_hinge" in repr(plan)
