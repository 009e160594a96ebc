"""What a step has seen of each sample, against the dense formula; the step itself stays as it is."""

import copy
from functools import partial

import pytest
import torch

from python_ref import hardest_pairs, observed_classes
from robustdml_ops import losses
from robustdml_ops.ops import ABSENT
from robustdml_ops.ops.classes import autograd

C, D, B = 30, 5, 12
CLASSES = {
    "proxy-nca": partial(losses.ProxyNCALoss, C, D, 3.0),
    "proxy-nca-2017": partial(losses.ProxyNCALoss, C, D, 3.0, include_positive=False),
    "normalized-softmax": partial(losses.NormalizedSoftmaxLoss, C, D, 0.2),
    "soft-triple": partial(losses.SoftTripleLoss, C, D, 3, margin=0.2),
    "cosface": partial(losses.CosFaceLoss, C, D, scale=9.0),
    "arcface": partial(losses.ArcFaceLoss, C, D, scale=9.0),
    "steep arcface": partial(losses.ArcFaceLoss, C, D, scale=200.0),
    "adaface": partial(losses.AdaFaceLoss, C, D, scale=9.0),
    "subcenter-arcface": partial(losses.SubCenterArcFaceLoss, C, D, scale=9.0, sub_centers=2),
    "smoothed": partial(losses.NormalizedSoftmaxLoss, C, D, 0.2, label_smoothing=0.1, weight=torch.linspace(0, 2, C)),
    "dropped": partial(losses.CosFaceLoss, C, D, scale=9.0, drop_similar_negatives=0.4),
}


def build(name, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return CLASSES[name](**options).to(dtype)


def batch(several=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(B, D, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    if not several:
        return X, torch.randint(C, (B,), generator=generator)
    labels = torch.rand(B, C, generator=generator).argsort(1)[:, :3]
    labels[::3, 1:] = ABSENT
    return X, labels


def similarities(loss, X):
    """(B, C) and their scale in the logits."""
    settings, unit = loss._logit_settings(), torch.nn.functional.normalize
    rows = loss._class_matrix().detach().double()
    S = (unit(X.detach().double()) @ unit(rows).t()).view(len(X), C, -1)
    pooling = settings.get("pooling", "none")
    s = (torch.softmax(S / settings["gamma"], 2) * S).sum(2) if pooling == "softmax" else S.amax(2)
    return s, settings["scale"]


def expected(loss, X, labels, drop=None):
    s, scale = similarities(loss, X)
    labels = labels.view(len(X), -1)
    labels = labels.masked_fill(labels == ABSENT, -1)
    logits = scale * s
    if drop is not None:
        own = torch.zeros(len(X), C + 1, dtype=torch.bool).scatter(1, labels % (C + 1), True)[:, :C]
        logits = logits.masked_fill((s > drop) & ~own, -torch.inf)
    return observed_classes(s, logits, labels)


def assert_seen(seen, wanted, atol=1e-12):
    for found, value in zip((seen.probability, seen.margin), wanted, strict=False):
        torch.testing.assert_close(found.double(), value, rtol=0, atol=atol, equal_nan=True)
        assert not found.requires_grad
    assert seen.rank.tolist() == wanted[2].tolist()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_classes_as_the_dense_formula(name, several):
    loss, (X, labels) = build(name), batch(several)
    drop = 0.4 if name == "dropped" else None
    with loss.observed() as seen:
        value = loss(X, labels)
        value.backward()
    assert_seen(seen, expected(loss, X, labels, drop))
    assert (seen.rank > 1).any()
    assert seen.hardest_positive is seen.hardest_negative is None
    Y, _ = batch(several)
    plain = build(name)(Y, labels)
    plain.backward()
    torch.testing.assert_close(value, plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(X.grad, Y.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision(dtype, backend):
    X, labels = batch(dtype=torch.float32)
    loss = losses.CosFaceLoss(C, D, scale=9.0, dtype=dtype, backend=backend).eval()
    with loss.observed() as seen:
        loss(X, labels)
    wanted = expected(loss, X, labels)
    assert_seen(seen, wanted, 1e-6 if dtype == torch.float32 else 2e-2)
    assert torch.equal(seen.rank == 1, seen.margin >= 0)


def test_equal_rows_are_no_nearer():
    """A copy of the own proxy leaves the margin 0 and the rank 1, and all others out of the way."""
    loss, (X, labels) = build("normalized-softmax", torch.float32), batch(dtype=torch.float32)
    loss.W.data[:] = loss.W.data[:, :1]
    with loss.observed() as seen:
        loss(X, labels)
    assert seen.rank.tolist() == [1] * B
    torch.testing.assert_close(seen.probability, torch.full((B,), 1 / C))


def test_sampled_negatives_are_those_drawn():
    loss, (X, labels) = build("normalized-softmax", negative_share=0.3), batch()
    twin = copy.deepcopy(loss)
    drawn = twin.negatives.draw(labels, C, None)
    with loss.observed() as seen:
        value = loss(X, labels)
    s, scale = similarities(loss, X)
    left_out = torch.ones(C, dtype=torch.bool).index_fill(0, drawn.classes, False)
    logits = torch.full_like(s, -torch.inf)
    logits[:, drawn.classes] = scale * s[:, drawn.classes] + drawn.weights(s.dtype).log()
    wanted = observed_classes(s, logits, labels[:, None])
    assert left_out.any()
    assert_seen(seen, wanted)
    torch.testing.assert_close(value, -seen.probability.log().mean(), rtol=0, atol=1e-12)


def test_absent_and_ignored_samples():
    loss, (X, labels) = build("arcface", ignore_index=-1), batch()
    given = labels.masked_fill(torch.arange(B) % 3 == 0, -1)
    with loss.observed() as seen:
        loss(X, given)
    wanted = [value.clone() for value in expected(loss, X, labels)]
    wanted[0][::3], wanted[1][::3], wanted[2][::3] = torch.nan, torch.nan, 0
    assert_seen(seen, wanted)
    with loss.observed() as seen, torch.no_grad():
        loss(X, labels, sample_weights=torch.zeros(B))
    assert_seen(seen, expected(loss, X, labels))
    several, (X, labels) = build("cosface"), batch(True)
    labels[2] = ABSENT
    with several.observed() as seen:
        several(X, labels)
    assert seen.rank[2] == 0
    assert_seen(seen, expected(several, X, labels))


def test_no_other_sweep_is_made_and_plans_stay(monkeypatch):
    sweeps, plain = [], autograd.class_sweep
    monkeypatch.setattr(autograd, "class_sweep", lambda *given: sweeps.append(1) or plain(*given))
    loss, (X, labels) = build("arcface"), batch()
    loss(X, labels)
    plans = dict(loss._plans.known)
    with loss.observed() as seen:
        loss(X, labels)
        first = seen.margin
        loss(X.flip(0), labels)
    assert len(sweeps) == 2
    assert not torch.equal(first, seen.margin)  # of the last call
    loss(X, labels)
    assert len(sweeps) == 2
    assert loss._plans.known == plans


def test_what_is_not_observed_says_so():
    X, labels = batch()
    with pytest.raises(TypeError, match="ProxyAnchorLoss is not observed"), losses.ProxyAnchorLoss(C, D).observed():
        pass
    with pytest.raises(TypeError, match="observe those"), losses.ProcSimLoss(C, D).observed():
        pass
    loss = build("arcface")
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    with loss.observed(), pytest.raises(Exception, match="compiled loss is not observed"):
        compiled(X, labels)
    loss(X, labels)


PAIRS = {
    "contrastive": losses.ContrastiveLoss,
    "cosine contrastive": partial(losses.ContrastiveLoss, 0.9, 0.1, distance="cosine"),
    "multi-similarity": losses.MultiSimilarityLoss,
    "mined": partial(losses.MultiSimilarityLoss, epsilon=0.1),
    "steep": partial(losses.MultiSimilarityLoss, 2000.0, 900.0),
    "bspml": losses.BSPMLLoss,
    "supcon": losses.SupConLoss,
    "ntxent": losses.NTXentLoss,
    "memory": losses.MemoryContrastiveLoss,
}


def pair_batch(n, several=False, dtype=torch.float64):
    """Samples of some classes, some of them alone in theirs, or absent."""
    generator = torch.Generator().manual_seed(n)
    X = torch.randn(n, 7, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(n // 2, (n,), generator=generator)
    if several:
        labels = torch.stack([labels, (labels + 1) % 7], 1)
    labels[3] = ABSENT
    return X.requires_grad_(), labels


def wanted_pairs(X, labels, candidates=None, candidate_labels=None, ids=None):
    unit = torch.nn.functional.normalize
    others, its = (X, labels) if candidates is None else (candidates, candidate_labels)
    S = unit(X.detach().double()) @ unit(others.detach().double()).t()
    mine, its = labels.view(len(labels), -1), its.view(len(its), -1)
    present = (mine != ABSENT).any(1)[:, None] & (its != ABSENT).any(1)
    same = ((mine[:, None, :, None] == its[None, :, None, :]) & (mine != ABSENT)[:, None, :, None]).any(-1).any(-1)
    if candidates is None:
        present.fill_diagonal_(False)
    if ids is not None:
        present &= ids[:, None] != ids
    return hardest_pairs(present & same, present & ~same, S)


def assert_pairs(seen, wanted, atol=1e-12):
    for found, value in zip((seen.hardest_positive, seen.hardest_negative), wanted, strict=True):
        torch.testing.assert_close(found.double(), value, rtol=0, atol=atol, equal_nan=True)
        assert not found.requires_grad
    assert seen.probability is seen.margin is seen.rank is None


@pytest.mark.parametrize("n", [20, 150])
@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_as_the_dense_formula(name, backend, n):
    (X, labels), loss = pair_batch(n), PAIRS[name](backend=backend)
    with loss.observed() as seen:
        value = loss(X, labels)
        value.backward()
    wanted = wanted_pairs(X, labels)
    assert wanted[0].isnan().any()
    assert_pairs(seen, wanted)
    Y = pair_batch(n)[0]
    plain = PAIRS[name](backend=backend)(Y, labels)
    plain.backward()
    torch.testing.assert_close(value, plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(X.grad, Y.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in ("bspml", "mined")])
def test_pairs_with_ids_several_labels_and_weights(name):
    X, labels = pair_batch(30, several=True)
    ids, weights = torch.arange(30) // 2, torch.ones(30).index_fill(0, torch.tensor([5, 9]), 0.0)
    loss = PAIRS[name](reduction="none")
    with loss.observed() as seen:
        loss(X, labels, sample_ids=ids, sample_weights=weights)
    absent = labels.index_fill(0, torch.tensor([5, 9]), ABSENT)
    assert_pairs(seen, wanted_pairs(X, absent, ids=ids))


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", [name for name in PAIRS if name != "bspml"])
def test_candidates_of_a_bank(name, backend):
    """Those of the memory loss are the batch, too."""
    (X, labels), (bank, of_bank) = pair_batch(30), pair_batch(75)
    loss = PAIRS[name](backend=backend)
    with loss.observed() as seen:
        loss(X, labels, None, bank.detach(), of_bank).backward()
    wanted = wanted_pairs(X, labels, bank, of_bank)
    if name == "memory":
        of_batch = wanted_pairs(X, labels)
        wanted = torch.fmin(wanted[0], of_batch[0]), torch.fmax(wanted[1], of_batch[1])
    assert_pairs(seen, wanted)


@pytest.mark.parametrize("form", ["outside", "inside"])
@pytest.mark.parametrize("n", [1100, 2000])
def test_large_batches_go_by_tiles(n, form):
    """Of float32, as by default."""
    (X, labels), loss = pair_batch(n, dtype=torch.float32), losses.SupConLoss(form=form)
    with loss.observed() as seen:
        loss(X, labels)
    assert_pairs(seen, wanted_pairs(X, labels), 1e-6)


TOWERS = {
    "symmetric": losses.InfoNCELoss,
    "one side": partial(losses.InfoNCELoss, symmetric=False),
    "rince": partial(losses.InfoNCELoss, 0.3, q=0.5),
    "sigmoid": losses.SigmoidLoss,
}


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("name", TOWERS)
def test_two_towers(name, backend):
    (X, _), (Y, _) = pair_batch(30), pair_batch(30)
    Y = Y.detach().roll(1, 0).requires_grad_()
    loss = TOWERS[name](backend=backend).double()
    ids = torch.arange(30) // 2
    with loss.observed() as seen:
        loss(X, Y, sample_ids=ids).backward()
    place = torch.arange(30)
    same = place[:, None] == place
    S = torch.nn.functional.normalize(X.detach()) @ torch.nn.functional.normalize(Y.detach()).t()
    assert_pairs(seen, hardest_pairs(same, (ids[:, None] != ids) & ~same, S))


def test_pairs_of_a_miner_are_refused():
    X, labels = pair_batch(20)
    few, loss = torch.tensor([0, 1]), losses.ContrastiveLoss()
    with loss.observed(), pytest.raises(RuntimeError, match="pairs that indices_tuple lists"):
        loss(X, labels, (few, few.flip(0), few, few + 4))


def test_empty_batches():
    loss = losses.SupConLoss()
    with loss.observed() as seen:
        loss(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert seen.hardest_positive.shape == (0,)
    classes = build("arcface")
    with classes.observed() as seen:
        classes(torch.zeros(0, D, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
    assert seen.rank.shape == (0,)
