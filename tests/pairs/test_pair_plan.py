"""The planned step of losses on pairs in one native call: the values of the general way, and its graph."""

from types import SimpleNamespace

import pytest
import torch

import python_ref
from robustdml_ops import losses
from robustdml_ops.backends import native_module
from robustdml_ops.engine.labels import ABSENT
from robustdml_ops.ops.pairs import sweep as sweeps
from robustdml_ops.ops.pairs.plan import PairPlan

pytestmark = pytest.mark.skipif(native_module.matrix_product(torch.float32) == 0, reason="no lanes here")

ON_PAIRS = {
    "contrastive": losses.ContrastiveLoss,
    "cosine": lambda **more: losses.ContrastiveLoss(0.9, 0.2, distance="cosine", **more),
    "squared": lambda **more: losses.ContrastiveLoss(0.1, 1.5, distance="squared", **more),
    "ms": lambda **more: losses.MultiSimilarityLoss(0.3, 9.0, 0.4, **more),
    "ms squared": lambda **more: losses.MultiSimilarityLoss(distance="squared", **more),
    "mined": lambda **more: losses.MultiSimilarityLoss(epsilon=0.0517, **more),
    "supcon": losses.SupConLoss,
    "inside": lambda **more: losses.SupConLoss(0.3, form="inside", **more),
    "nt-xent": lambda **more: losses.NTXentLoss(0.2, **more),
    "memory": losses.MemoryContrastiveLoss,
    "authors": lambda **more: losses.MemoryContrastiveLoss(variant="authors", **more),
    "bspml": losses.BSPMLLoss,
    "bspml without zeros": lambda **more: losses.BSPMLLoss(exclude_zero_weights=True, **more),
}
WITH_CANDIDATES = tuple(name for name in ON_PAIRS if not name.startswith("bspml"))
TOWERS = {
    "info-nce": lambda **more: losses.InfoNCELoss(0.2, **more),
    "one side": lambda **more: losses.InfoNCELoss(0.2, symmetric=False, **more),
    "sigmoid": lambda **more: losses.SigmoidLoss(0.2, -2.0, **more),
}
GIVEN = ("alone", "bank", "view")


@pytest.fixture
def calls(monkeypatch):
    """Counts the planned steps, or keeps all on the general way."""
    seen, run = SimpleNamespace(taken=0, allowed=True), PairPlan.run

    def counted(plan, *tensors):
        results = run(plan, *tensors) if seen.allowed else None
        seen.taken += results is not None
        return results

    monkeypatch.setattr(PairPlan, "run", counted)
    return seen


def batch(given="alone", B=41, D=13, m=30, dtype=torch.float32, classes=5):
    """One or two matrices, and a call of a loss with them."""
    generator = torch.Generator().manual_seed(B)
    draw = lambda rows: torch.randn(rows, D, generator=generator, dtype=torch.float64).to(dtype)  # noqa: E731
    labels = lambda rows: torch.randint(classes, (rows,), generator=generator) + 2**40  # noqa: E731
    X, V, y, z = draw(B), draw(m if given == "bank" else B), labels(B), labels(m)
    z[::7] = ABSENT
    return [X, V][: 1 if given == "alone" else 2], {
        "alone": lambda loss, X, **more: loss(X, y, **more),
        "bank": lambda loss, X, V, **more: loss(X, y, None, V, z, **more),
        "view": lambda loss, X, V, **more: loss(X, y, None, V, **more),
        "towers": lambda loss, X, V, **more: loss(X, V, **more),
    }[given]


def step(loss_function, matrices, call, upstream=1.0, **options):
    """The loss, and gradients of matrices and parameters."""
    leaves = [matrix.detach().clone().requires_grad_() for matrix in matrices]
    loss_function.zero_grad()
    loss = call(loss_function, *leaves, **options)
    (upstream * loss).backward()
    return [loss.detach(), *(leaf.grad for leaf in leaves), *(p.grad for p in loss_function.parameters())]


def assert_near(ours, theirs, dtype, factor=1):
    for mine, truth in zip(ours, theirs, strict=True):
        assert torch.isfinite(mine).all()
        allowed = factor * (2e-6 if dtype == torch.float32 else 1e-14) * (truth.abs().max() + 1e-2)
        assert (mine.double() - truth.double()).abs().max() <= allowed


CASES = [(name, given) for name in ON_PAIRS for given in (GIVEN if name in WITH_CANDIDATES else GIVEN[:1])]
CASES += [(name, "towers") for name in TOWERS]


def loss_of(name, dtype=torch.float32, **more):
    return {**ON_PAIRS, **TOWERS}[name](**more).to(dtype)


def weights_of(kind, B, dtype):
    if kind == "bool":
        return {"sample_weights": torch.arange(B) % 3 != 1}
    if kind == "float":
        return {"sample_weights": torch.linspace(0.5, 2, B, dtype=dtype).masked_fill(torch.arange(B) % 4 == 1, 0)}
    return {}


@pytest.mark.parametrize("weights", ["none", "float", "bool"])
@pytest.mark.parametrize(("name", "given"), CASES)
def test_values_of_the_general_way(calls, name, given, weights, threads):
    """Of one or several threads, and of eager in float64."""
    threads(2)
    for dtype, B in ((torch.float32, 41), (torch.float64, 33), (torch.float32, 1), (torch.float32, 150)):
        matrices, call = batch(given, B, dtype=dtype)
        options = weights_of("none" if name in TOWERS and weights == "bool" else weights, B, dtype)
        calls.taken, calls.allowed = 0, True
        ours = step(loss_of(name, dtype), matrices, call, **options)
        assert calls.taken >= 1
        calls.allowed = False
        assert_near(ours, step(loss_of(name, dtype), matrices, call, **options), dtype)
        exact = [matrix.double() for matrix in matrices]
        eager = step(loss_of(name, torch.float64, backend="eager"), exact, call, **options)
        assert_near(ours, eager, dtype, 30)


@pytest.mark.parametrize(("name", "given"), CASES)
def test_same_bits_of_any_number_of_threads(calls, name, given, threads, monkeypatch):
    """Of chunks of one size: by default it follows from the number of threads, too."""
    monkeypatch.setattr(native_module, "lane_rows", lambda *_: 7)
    matrices, call = batch(given, 40)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(step(loss_of(name), matrices, call))
        torch.testing.assert_close(found[-1], found[0], rtol=0, atol=0)
    assert calls.taken >= 3


@pytest.mark.parametrize(("name", "given"), [("supcon", "alone"), ("inside", "alone"), ("nt-xent", "alone")])
def test_tiles(calls, name, given, threads, monkeypatch):
    threads(2)
    for least in ("_WHOLE", "_EACH_PAYS"):
        monkeypatch.setattr(sweeps, least, 0)
    matrices, call = batch(given, 257, classes=40)
    found = []
    for calls.allowed in (True, False):
        loss_function = loss_of(name)
        found.append(step(loss_function, matrices, call))
        assert [plan.way for plan in loss_function._plans.known.values()] == ["tiles"]
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=0)
    assert torch.equal(found[0][1], found[1][1]) and calls.taken == 1


@pytest.mark.parametrize("labels", ["one class", "no positives", "absent", "ignored"])
@pytest.mark.parametrize("name", ON_PAIRS)
def test_labels(calls, name, labels):
    if name.startswith("bspml"):  # which ignores none
        labels = labels.replace("ignored", "absent")
    matrices, _ = batch(B=24)
    places = torch.arange(24)
    y = {
        "one class": torch.zeros_like(places),
        "no positives": places * 2**33,
        "absent": (places % 5).masked_fill(places % 3 == 0, ABSENT),
        "ignored": places % 5,
    }[labels]
    more = {"ignore_index": 1} if labels == "ignored" else {}
    call = lambda loss, X: loss(X, y)  # noqa: E731
    ours = step(loss_of(name, **more), matrices, call)
    assert calls.taken == 1
    calls.allowed = False
    assert_near(ours, step(loss_of(name, backend="eager", **more), matrices, call), torch.float32)


@pytest.mark.parametrize("name", ["contrastive", "cosine", "ms", "supcon"])
def test_ignored_candidates(calls, name):
    matrices, call = batch("bank")
    found = []
    for calls.allowed in (True, False):
        found.append(step(loss_of(name, ignore_index=2**40 + 2), matrices, call))
    assert calls.taken == 1
    assert_near(*found, torch.float32)


@pytest.mark.parametrize("given", GIVEN)
def test_near_pairs_keep_their_distance(calls, given):
    """Of rows that agree but for 10⁻⁵: cosines have rounded that away."""
    matrices, call = batch(given, B=20, m=20)
    matrices[0][1:4] = matrices[0][:1] * (1 + 1e-5 * torch.randn(3, 13))
    matrices[-1][4:8] = 2 * matrices[0][:4] + 1e-6
    ours = step(losses.ContrastiveLoss(), matrices, call)
    assert calls.taken == 1
    calls.allowed = False
    exact = step(losses.ContrastiveLoss(), [matrix.double() for matrix in matrices], call)
    assert_near(ours[:1], exact[:1], torch.float32)
    assert_near(ours, step(losses.ContrastiveLoss(), matrices, call), torch.float32)


REFERENCES = {
    "contrastive": lambda X, y, w: python_ref.contrastive_loss(X, y, sample_weights=w),
    "mined": lambda X, y, w: python_ref.multi_similarity_loss(X, y, epsilon=0.0517, sample_weights=w),
    "supcon": lambda X, y, w: python_ref.supcon_loss(X, y, sample_weights=w),
    "nt-xent": lambda X, y, w: python_ref.nt_xent_loss(X, y, temperature=0.2, sample_weights=w),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", REFERENCES)
def test_reference(calls, name, weighted):
    (X,), y = batch(B=37, dtype=torch.float64)[0], torch.arange(37) % 9
    weights = weights_of("float", 37, torch.float64)["sample_weights"] if weighted else None
    ours = step(loss_of(name, torch.float64), [X], lambda loss, X: loss(X, y, sample_weights=weights))
    X.requires_grad_()
    loss = REFERENCES[name](X, y, weights)
    assert calls.taken == 1
    assert_near(ours, [loss.detach(), *torch.autograd.grad(loss, X)], torch.float64, 100)


def test_weights_that_integers_times_numbers_would_round(calls):
    """present · α of an integer and 0.3 is a float32, whatever the weights are."""
    (X,), y = batch(B=37, dtype=torch.float64)[0], torch.arange(37) % 9
    weights = weights_of("float", 37, torch.float64)["sample_weights"]
    for calls.allowed in (False, True):
        ours = losses.MultiSimilarityLoss(0.3, 7.7, 0.4)(X, y, sample_weights=weights)
        exact = python_ref.multi_similarity_loss(X, y, alpha=0.3, beta=7.7, base=0.4, sample_weights=weights)
        torch.testing.assert_close(ours, exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("name", "given"), CASES)
def test_graph_of_the_general_way(calls, name, given):
    """A second backward, another upstream gradient, and the derivative of a gradient."""
    found = []
    matrices, call = batch(given, 12, dtype=torch.float64)
    for calls.allowed in (False, True):
        loss_function = loss_of(name, torch.float64)
        found.append(step(loss_function, matrices, call, upstream=0.3))
        leaves = [matrix.clone().requires_grad_() for matrix in matrices]
        inputs = [*leaves, *loss_function.parameters()]
        loss = call(loss_function, *(leaf * leaf for leaf in leaves))
        twice = [torch.autograd.grad(loss, inputs, retain_graph=True) for _ in range(2)]
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = torch.autograd.grad(sum((gradient**2).sum() for gradient in first), inputs)
        found[-1] += [*twice[0], *twice[1], *first, *second]
    assert calls.taken >= 2
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_settings_of_the_forward(calls):
    """A second backward has the settings that the loss had in forward, of parameters, too."""
    X, V = batch("towers", dtype=torch.float64)[0]
    for loss_function, change, given in (
        (losses.SupConLoss(), lambda loss: setattr(loss, "temperature", 5.0), (torch.arange(41) // 3,)),
        (losses.SigmoidLoss().double(), lambda loss: setattr(loss, "logit_bias", None), (V,)),
    ):
        leaf = X.clone().requires_grad_()
        loss = loss_function(leaf, *given)
        (once,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        change(loss_function)
        torch.testing.assert_close(torch.autograd.grad(loss, leaf), (once,), rtol=1e-10, atol=1e-13)
    assert calls.taken == 2


@pytest.mark.parametrize("frozen", ["X", "candidates", "all", "scale"])
def test_gradients_that_are_not_wanted(calls, frozen):
    X, V = batch("towers")[0]
    loss_function = losses.SigmoidLoss()
    X.requires_grad_(frozen not in ("X", "all"))
    V.requires_grad_(frozen not in ("candidates", "all"))
    for parameter in loss_function.parameters():
        parameter.requires_grad_(frozen not in ("scale", "all"))
    loss = loss_function(X, V)
    assert calls.taken == 1 and loss.requires_grad == (frozen != "all")
    if frozen != "all":
        loss.backward()
    calls.allowed = False
    expected = step(losses.SigmoidLoss(), [X, V], lambda loss, X, V: loss(X, V))
    torch.testing.assert_close(loss.detach(), expected[0])
    for tensor, gradient in zip((X, V, *loss_function.parameters()), expected[1:], strict=True):
        assert (tensor.grad is not None) == tensor.requires_grad
        if tensor.grad is not None:
            torch.testing.assert_close(tensor.grad, gradient)


SPOILT = {
    "an embedding": lambda X, V, w: X[2].fill_(torch.nan),
    "a candidate": lambda X, V, w: V[3].fill_(torch.inf),
    "a weight": lambda X, V, w: w[1:2].fill_(-1),
    "a weight that is NaN": lambda X, V, w: w[1:2].fill_(torch.nan),
}


@pytest.mark.parametrize("what", SPOILT)
@pytest.mark.parametrize("name", ["contrastive", "ms", "supcon", "memory"])
def test_errors_of_the_general_way(calls, name, what):
    (X, V), call = batch("bank")
    w = torch.ones(41)
    SPOILT[what](X, V, w)
    messages = []
    for calls.allowed in (False, True):
        with pytest.raises(ValueError, match=r"finite|NaN") as error:
            call(loss_of(name), X, V, sample_weights=w)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("name", ["contrastive", "ms", "supcon", "info-nce"])
def test_rows_of_extreme_length_take_the_general_way(calls, name):
    for place in range(2):
        matrices, call = batch("towers" if name == "info-nce" else "bank")
        matrices[place][4] *= 1e-25
        found = step(loss_of(name), matrices, call)
        exact = step(loss_of(name, torch.float64), [matrix.double() for matrix in matrices], call)
        torch.testing.assert_close(found[0].double(), exact[0], rtol=1e-5, atol=1e-6)
    assert calls.taken == 2  # of float64, where the rows are in reach


REFUSED = {
    "labels without candidates": lambda X, y: losses.SupConLoss()(X, y, None, None, y.clone()),
    "a view of another length": lambda X, y: losses.SupConLoss()(X, y, None, X[:5]),
    "labels of another length": lambda X, y: losses.SupConLoss()(X, y[:5]),
    "no labels": lambda X, y: losses.SupConLoss()(X),
    "towers of other lengths": lambda X, y: losses.InfoNCELoss()(X, X[:5]),
    "label weights": lambda X, y: losses.SupConLoss()(X, y, label_weights=torch.ones(41, 1)),
    "epsilon of squared distances": lambda X, y: losses.MultiSimilarityLoss(epsilon=0.1, distance="squared")(X, y),
    "candidates of BSPML": lambda X, y: losses.BSPMLLoss()(X, y, None, X.clone(), y),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_plan_serves_is_refused(calls, what):
    (X,), y = batch()[0], torch.arange(41) % 7
    with pytest.raises(ValueError, match=r"ref_labels|labels|label_weights|others|epsilon|BSPML"):
        REFUSED[what](X, y)
    assert calls.taken == 0


GENERAL = {
    "none": ({"reduction": "none"}, {}),
    "eager": ({"backend": "eager"}, {}),
    "a miner": ({}, {"indices_tuple": tuple(torch.tensor([i, 9 + i]) for i in range(4))}),
    "learnt weights": ({}, {"sample_weights": torch.ones(41, requires_grad=True)}),
}


@pytest.mark.parametrize("name", GENERAL)
def test_options_take_the_general_way(calls, name):
    settings, given = GENERAL[name]
    (X,), y = batch()[0], torch.arange(41) % 7
    losses.MultiSimilarityLoss(**settings)(X, y, **given)
    assert calls.taken == 0


def test_tensors_that_are_not_plain_take_the_general_way(calls):
    (X,), y = batch()[0], torch.arange(41) % 7
    loss_function = losses.SupConLoss()
    with torch.autocast("cpu", torch.bfloat16):
        loss_function(X, y)
    for odd in (X.bfloat16(), X.t().contiguous().t()):
        loss_function(odd, y)
    loss_function(X, y.double())
    torch.func.grad(lambda X: loss_function(X, y))(X.detach())
    loss_function(X[:0], y[:0])
    loss_function(X, y, None, X[:0], y[:0])
    assert calls.taken == 0
