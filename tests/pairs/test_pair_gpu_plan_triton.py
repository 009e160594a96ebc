"""Planned steps of losses on pairs on a GPU against float64, and against the general way of the same kernels."""

import pytest
import torch

from robustdml_ops import losses
from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.ops.pairs import compiled_backends, plan as plans
from robustdml_ops.ops.pairs import sweep as sweeps
from robustdml_ops.ops.pairs.plan import BatchAndBankPlan, PairGpuPlan
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
    "one side": lambda **more: losses.InfoNCELoss(0.2, symmetric=False, **more),
    "sigmoid": lambda **more: losses.SigmoidLoss(0.2, -2.0, **more),
}
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
        monkeypatch.setattr("robustdml_ops.engine.similarity_chunks.chunk_rows", lambda *_: 16)


def inputs(given="alone", dtype=torch.float32, device=DEVICE, B=37, D=13, m=30):
    """Matrices with a zero row, and a call of a loss with them; the same numbers in every type."""
    generator = torch.Generator().manual_seed(B)
    X, V = (torch.randn(rows, D, generator=generator, dtype=F64) for rows in (B, m if given == "bank" else B))
    X[4] = 0
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


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("weights", nightly_but(["none", "float"], WEIGHTS))
@pytest.mark.parametrize(("name", "given"), CASES)
def test_as_exact_as_the_general_way(name, given, weights, monkeypatch):
    weights = "float" if weights == "bool" and given == "towers" else weights
    upstream = {"none": 1.0, "bool": 0.3, "float": -2.0}[weights]
    exact, _ = step(name, given, "eager", F64, weights, torch.device("cpu"), upstream)
    ours, plan = step(name, given, weights=weights, upstream=upstream)
    assert isinstance(plan, PairGpuPlan | BatchAndBankPlan)
    monkeypatch.setattr(losses.families.pairs, "pair_gpu_plan", lambda *_: None)
    monkeypatch.setattr(losses.families.contrast, "pair_gpu_plan", lambda *_: None)
    general, plan = step(name, given, weights=weights, upstream=upstream)
    assert plan is None
    for one, other, right in zip(ours, general, exact, strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert error(one, right) <= 1.5 * error(other, right) + 2e-7
